package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/certtest"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// useAll has a provider do everything once.
func useAll(t *testing.T, p *Provider) {
	t.Helper()
	ctx := testContext(t)
	must := func(err error) {
		t.Helper()
		must.Succeed(t, err)
	}
	must(p.Init(ctx, ""))
	leases, err := p.Acquire(ctx, provider.AcquireRequest{RequestID: provider.NewSecret(), ThroughputPerMS: 1000})
	must(err)
	_, err = provider.Extend(ctx, p, "", leases[0])
	must(err)
	lost, err := provider.Verify(ctx, p, "", leases)
	must(err)
	if len(lost) > 0 {
		t.Errorf("%v are said to be lost", lost)
	}
	records, err := p.List(ctx, "")
	must(err)
	records = slices.DeleteFunc(records, func(r provider.Record) bool { return r.Released }) // by an earlier call
	if len(records) != len(leases) {
		t.Errorf("there are %d records of %d leases", len(records), len(leases))
	}
	held, err := p.Locate(ctx, "", leases[0].Slot().Start, leases[0].Created)
	must(err)
	if len(held) != 1 {
		t.Errorf("%v held it", held)
	}
	_, err = p.Counters(ctx, "")
	must(err)
	at := time.Now().UnixMilli()
	for _, l := range leases {
		must(p.Release(ctx, providertest.SignedRelease(l, at)))
	}
}

func mustParse(t *testing.T, url string) Config {
	t.Helper()
	cfg, err := ParseURL(url, nil)
	must.Succeed(t, err)
	return cfg
}

// refused opens where that must fail, with these words and without the secret.
func refused(t *testing.T, cfg Config, want ...string) {
	t.Helper()
	p, err := Open(testContext(t), cfg)
	if err == nil {
		p.Close()
		t.Errorf("%s was opened, want an error with %q", cfg.Place(), want)
		return
	}
	for _, text := range append(want, cfg.Place()) {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error is %q, want one with %q", err, text)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error shows the password: %v", err)
	}
}

func TestUnixSocketAndTCP(t *testing.T) {
	s := redistest.NewWithPort(t)
	useAll(t, mustOpen(t, mustParse(t, "redis+unix:"+s.Sock+"?db=3")))
	useAll(t, mustOpen(t, mustParse(t, fmt.Sprintf("redis://127.0.0.1:%d/4", s.Port))))
	if keyspace := s.Do(t, "INFO", "keyspace"); !strings.Contains(keyspace, "db3:") || !strings.Contains(keyspace, "db4:") || strings.Contains(keyspace, "db0:") {
		t.Errorf("the pools are in %s", keyspace)
	}
	refused(t, mustParse(t, "redis+unix:"+s.Sock+"?db=99"), "does not have this database")
	refused(t, mustParse(t, "redis+unix:"+s.Sock+"x"), "no such file")
	refused(t, mustParse(t, fmt.Sprintf("redis://127.0.0.1:%d/0", ring.FreePort(t))), "connection refused")
}

func TestPasswords(t *testing.T) {
	s := redistest.NewWithPort(t, "--requirepass", "hunter2!")
	at := fmt.Sprintf("127.0.0.1:%d/0", s.Port)
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("hunter2!\n")
	useAll(t, mustOpen(t, mustParse(t, "redis://:hunter2%21@"+at)))
	useAll(t, mustOpen(t, mustParse(t, "redis://default:hunter2!@"+at)))
	useAll(t, mustOpen(t, mustParse(t, "redis://"+at+"?username=default&password_file="+file)))
	refused(t, mustParse(t, "redis://"+at), "the server wants a password")
	refused(t, mustParse(t, "redis://:hunter22@"+at), "the user name or password is wrong")
	refused(t, mustParse(t, "redis://"+at+"?password_file=/nonexistent"), "/nonexistent")

	// A file that changes is read at the next connection.
	p := mustOpen(t, mustParse(t, "redis://"+at+"?password_file="+file))
	raw := s.Raw()
	defer raw.Close()
	conn := raw.Conn()
	defer conn.Close()
	for _, words := range [][]any{{"AUTH", "hunter2!"}, {"CONFIG", "SET", "requirepass", "another"}, {"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"}} {
		must.Succeed(t, conn.Do(testContext(t), words...).Err())
	}
	write("another")
	if _, err := p.List(testContext(t), ""); err != nil {
		t.Error(err)
	}
}

// The rule is the one that the documentation shows.
func TestLeastPrivileges(t *testing.T) {
	s := redistest.New(t)
	page, err := os.ReadFile("../../../docs/providers/redis.md")
	must.Succeed(t, err)
	_, rule, ok := strings.Cut(string(page), "ACL SETUSER kazahana ")
	rule, _, _ = strings.Cut(rule, "\n")
	if !ok {
		t.Fatal("docs/providers/redis.md shows no ACL rule")
	}
	rule = strings.ReplaceAll(strings.ReplaceAll(rule, "'", ""), "PASSWORD", "hunter2")
	words := strings.Fields(rule)
	set := func(words []string) { s.SetUser(t, "kazahana", words) }
	set(words)
	cfg := mustParse(t, "redis+unix://kazahana:hunter2@"+s.Sock)
	cfg.MinReplicas = 0
	useAll(t, mustOpen(t, cfg))
	replicas := cfg
	replicas.MinReplicas = 1
	waiting := mustOpen(t, replicas).client
	if _, err := redisconn.Run(testContext(t), waiting, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (struct{}, error) {
		return struct{}{}, waiting.Confirm(ctx, conn)
	}); !errors.Is(err, redisconn.ErrUnconfirmed) {
		t.Error(err)
	}
	// Nothing in it is more than is needed, and what lacks is said at the start.
	for i, w := range words {
		if !strings.HasPrefix(w, "+") || w == "+select" {
			continue
		}
		set(slices.Delete(slices.Clone(words), i, i+1))
		p, err := Open(testContext(t), cfg)
		if err == nil {
			p.Close()
			t.Errorf("%s can be left out", w)
		} else if !strings.Contains(err.Error(), "ACL does not allow") {
			t.Errorf("without %s: %v", w, err)
		}
	}
	set(words)
	cfg.Prefix = "{other}:"
	refused(t, cfg, "ACL does not allow")
}

func TestTLS(t *testing.T) {
	authority := certtest.New(t, "test authority")
	ca := authority.File
	cert, key := authority.Issue("redis")
	port := ring.FreePort(t)
	redistest.New(t, "--tls-port", strconv.Itoa(port), "--bind", "127.0.0.1", "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca)
	at := fmt.Sprintf("127.0.0.1:%d/0", port)
	files := "ca_file=" + ca + "&cert_file=" + cert + "&key_file=" + key
	useAll(t, mustOpen(t, mustParse(t, "rediss://"+at+"?"+files)))
	refused(t, mustParse(t, "rediss://"+at+"?cert_file="+cert+"&key_file="+key), "not signed by an authority known here (ca_file=)")
	refused(t, mustParse(t, "rediss://"+strings.Replace(at, "127.0.0.1", "localhost", 1)+"?"+files), "for another name")
	refused(t, mustParse(t, "rediss://"+at+"?ca_file="+ca)) // the server wants a certificate too
	refused(t, mustParse(t, "rediss://"+at+"?ca_file="+key), "no certificate in PEM form")
	refused(t, mustParse(t, "rediss://"+at+"?ca_file="+ca+"&cert_file="+cert+"&key_file="+cert), "and key_file ")
	plain := redistest.NewWithPort(t)
	refused(t, mustParse(t, fmt.Sprintf("rediss://127.0.0.1:%d/0?%s", plain.Port, files)), "is it TLS that it speaks on this port?")
	refused(t, mustParse(t, "redis://"+at))
}

// A server that hangs takes no longer than the caller's deadline, and neither
// does one that is cancelled without one.
func TestHungServer(t *testing.T) {
	s := redistest.New(t)
	r := newRig(t, s)
	r.acquire(r.provider)
	s.Signal(stop)
	defer s.Signal(resume)
	request := provider.NewSecret()
	for _, want := range []error{context.DeadlineExceeded, context.Canceled} {
		ctx, cancel := context.WithCancel(context.Background())
		if want == context.DeadlineExceeded {
			ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
		} else {
			defer time.AfterFunc(time.Second, cancel).Stop()
		}
		if _, err := r.provider.Acquire(ctx, provider.AcquireRequest{RequestID: request}); !errors.Is(err, want) {
			t.Errorf("the error is %v, want %v", err, want)
		}
	}
	s.Signal(resume)
	// Whether the calls above were granted or not: one request has one lease.
	first, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{RequestID: request})
	must.Succeed(t, err)
	again, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{RequestID: request})
	if err != nil || again[0] != first[0] {
		t.Errorf("the request was answered with %v and %v (%v)", first, again, err)
	}
}

func TestCloseEndsCalls(t *testing.T) {
	s := redistest.New(t)
	r := newRig(t, s)
	s.Signal(stop)
	defer s.Signal(resume)
	ended := make(chan error)
	go func() {
		_, err := r.provider.Acquire(context.Background(), provider.AcquireRequest{})
		ended <- err
	}()
	time.Sleep(50 * time.Millisecond) // long enough to be under way; if not, the test shows less
	r.provider.Close()
	if err := <-ended; !errors.Is(err, redisconn.ErrClosed) {
		t.Errorf("the error is %v, want redisconn.ErrClosed", err)
	}
}

// Connections that were closed since the last call are not noticed by anybody.
func TestStaleConnections(t *testing.T) {
	s := redistest.New(t)
	r := newRig(t, s)
	for range 4 {
		s.Do(t, "CLIENT", "KILL", "TYPE", "normal")
		r.acquire(r.provider)
	}
}

// The answer is lost with the connection. A request that can be told from
// others is sent again, and brings what it brought before; one that cannot is
// the caller's to repeat.
func TestAnswerLost(t *testing.T) {
	s := redistest.New(t)
	proxy := redistest.NewProxy(t, s)
	r := newRig(t, s)
	p := r.on(&server{Sock: proxy.Sock})
	granted := func(want int) {
		t.Helper()
		if records, err := p.List(testContext(t), ""); err != nil || len(records) != want {
			t.Errorf("there are %d records, want %d (%v)", len(records), want, err)
		}
	}
	proxy.Lose(func() {})
	r.acquire(p)
	granted(1)
	proxy.Lose(func() {})
	if leases, err := p.Acquire(testContext(t), provider.AcquireRequest{}); err == nil {
		t.Errorf("the lost answer was %v", leases)
	}
	granted(2)
}

func TestServersThatCannotBeUsed(t *testing.T) {
	s := redistest.NewWithPort(t)
	r := newRig(t, s)
	policy := func(name string) { s.Do(t, "CONFIG", "SET", "maxmemory-policy", name) }
	policy("allkeys-lru")
	refused(t, r.cfg, "maxmemory-policy is allkeys-lru", "set it to noeviction")
	if _, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{}); err == nil || !strings.Contains(err.Error(), "noeviction") {
		t.Errorf("changed while in use: %v", err)
	}
	policy("noeviction")
	r.acquire(r.provider)

	s.Do(t, "CONFIG", "SET", "maxmemory", "1")
	if _, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{}); err == nil || !strings.Contains(err.Error(), "no memory left") {
		t.Errorf("out of memory: %v", err)
	}
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	s.Do(t, "CONFIG", "SET", "min-replicas-to-write", "1")
	if _, err := r.provider.Acquire(testContext(t), provider.AcquireRequest{}); err == nil || !strings.Contains(err.Error(), "fewer good replicas") {
		t.Errorf("min-replicas-to-write: %v", err)
	}
	s.Do(t, "CONFIG", "SET", "min-replicas-to-write", "0")
	r.acquire(r.provider)
	if err := checkRings(s, r.cfg.Prefix+"default:"); err != nil {
		t.Error(err)
	}
	replica := redistest.NewWithPort(t)
	replica.Follow(s)
	refused(t, Config{Config: redisconn.Config{Scheme: redisconn.SchemeUnix, Addrs: []string{replica.Sock}, Prefix: r.cfg.Prefix}, Services: defaultServices()}, "name its primary")
}

// redis-cli shows the slots in the order of their numbers, also where these have more and
// more digits.
// Seed 001-17.
func TestSlotsAreShownInOrder(t *testing.T) {
	s := redistest.New(t)
	r := newRig(t, s, func(c *Config) {
		terms := provider.DefaultTerms()
		terms.IDs = provider.IDRange{Low: 8, End: 12}
		c.Services = provider.Services{Default: terms}
	})
	for range 4 {
		r.acquire(r.provider)
	}
	if got, want := s.Do(t, "ZRANGE", r.cfg.Prefix+"default:slots", 0, -1), "[08:8 08:9 08:10 08:11]"; got != want {
		t.Errorf("shown are %s, want %s", got, want)
	}
	free := strings.Fields(strings.Trim(s.Do(t, "ZRANGE", r.cfg.Prefix+"default:ring:8:8-11:free", 0, -1), "[]"))
	if len(free) == 0 || !slices.IsSorted(free) {
		t.Errorf("free are shown as %q", free)
	}
}
