package redis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/certtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// useAll has a provider on that URL do everything once.
func useAll(t *testing.T, url string) {
	t.Helper()
	p := &leasing{T: t, options: optionsOf(t, url)}
	p.provider = p.open(p.options)
	p.init()
	leases, err := p.provider.Acquire(p.context(), provider.AcquireRequest{RequestID: provider.NewSecret(), ThroughputPerMS: 1000})
	must.Succeed(t, err)
	_, err = provider.Extend(p.context(), p.provider, "", leases[0])
	must.Succeed(t, err)
	if n := p.lost(p.provider, leases...); n > 0 {
		t.Errorf("%d are said to be lost", n)
	}
	records, err := p.provider.List(p.context(), "")
	must.Succeed(t, err)
	if len(records) < len(leases) {
		t.Errorf("there are %d records of %d leases", len(records), len(leases))
	}
	held, err := p.provider.Locate(p.context(), "", leases[0].Slot().Start, leases[0].Created)
	must.Succeed(t, err)
	if len(held) != 1 {
		t.Errorf("%v held it", held)
	}
	_, err = p.provider.Counters(p.context(), "")
	must.Succeed(t, err)
	for _, l := range leases {
		must.Succeed(t, p.provider.Release(p.context(), providertest.SignedRelease(l, time.Now().UnixMilli())))
	}
}

// refused opens where that must fail, with these words and without the secret.
func refused(t *testing.T, url string, want ...string) {
	t.Helper()
	o := optionsOf(t, url)
	p, err := openLeases(o)
	if err == nil {
		p.Close()
		t.Errorf("%s was opened, want an error with %q", o.Place(), want)
		return
	}
	for _, text := range append(want, o.Place()) {
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
	useAll(t, "redis+unix:"+s.Sock+"?db=3")
	useAll(t, fmt.Sprintf("redis://%s/4", s.Address()))
	if keyspace := s.Do(t, "INFO", "keyspace"); !strings.Contains(keyspace, "db3:") || !strings.Contains(keyspace, "db4:") || strings.Contains(keyspace, "db0:") {
		t.Errorf("the pools are in %s", keyspace)
	}
	refused(t, "redis+unix:"+s.Sock+"?db=99", "does not have this database")
	refused(t, "redis+unix:"+s.Sock+"x", "no such file")
	refused(t, fmt.Sprintf("redis://127.0.0.1:%d/0", ring.FreePort(t)), "connection refused")
}

func TestPasswords(t *testing.T) {
	s := redistest.NewWithPort(t, "--requirepass", "hunter2!")
	at := s.Address() + "/0"
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("hunter2!\n")
	useAll(t, "redis://:hunter2%21@"+at)
	useAll(t, "redis://default:hunter2!@"+at)
	useAll(t, "redis://"+at+"?username=default&password_file="+file)
	refused(t, "redis://"+at, "the server wants a password")
	refused(t, "redis://:hunter22@"+at, "the user name or password is wrong")
	refused(t, "redis://"+at+"?password_file=/nonexistent", "/nonexistent")

	// A file that changes is read at the next connection.
	p := &leasing{T: t, options: optionsOf(t, "redis://"+at+"?password_file="+file)}
	p.provider = p.open(p.options)
	raw := s.Raw()
	defer raw.Close()
	conn := raw.Conn()
	defer conn.Close()
	for _, words := range [][]any{{"AUTH", "hunter2!"}, {"CONFIG", "SET", "requirepass", "another"}, {"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"}} {
		must.Succeed(t, conn.Do(p.context(), words...).Err())
	}
	write("another")
	_, err := p.provider.List(p.context(), "")
	must.Succeed(t, err)
}

// The rule that the page shows is enough. TestRights says that nothing in it is too much.
func TestLeastPrivileges(t *testing.T) {
	s := redistest.New(t)
	page, err := os.ReadFile("../../../docs/providers/redis.md")
	must.Succeed(t, err)
	_, rule, ok := strings.Cut(string(page), "ACL SETUSER kazahana ")
	rule, _, _ = strings.Cut(rule, "\n")
	if !ok {
		t.Fatal("docs/providers/redis.md shows no ACL rule")
	}
	s.SetUser(t, "kazahana", strings.Fields(strings.NewReplacer("'", "", "PASSWORD", "hunter2").Replace(rule)))
	url := "redis+unix://kazahana:hunter2@" + s.Sock
	useAll(t, url)
	refused(t, url+"?prefix=%7Bother%7D:", "ACL does not allow")
}

func TestTLS(t *testing.T) {
	authority := certtest.New(t, "test authority")
	cert, key := authority.Issue("redis")
	port := ring.FreePort(t)
	redistest.New(t, "--tls-port", strconv.Itoa(port), "--bind", "127.0.0.1", "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", authority.File)
	at := fmt.Sprintf("127.0.0.1:%d/0", port)
	files := "ca_file=" + authority.File + "&cert_file=" + cert + "&key_file=" + key
	useAll(t, "rediss://"+at+"?"+files)
	refused(t, "rediss://"+at+"?cert_file="+cert+"&key_file="+key, "not signed by an authority known here (ca_file=)")
	refused(t, "rediss://"+strings.Replace(at, "127.0.0.1", "localhost", 1)+"?"+files, "for another name")
	refused(t, "rediss://"+at+"?ca_file="+authority.File) // the server wants a certificate too
	refused(t, "rediss://"+at+"?ca_file="+key, "no certificate in PEM form")
	refused(t, "rediss://"+at+"?ca_file="+authority.File+"&cert_file="+cert+"&key_file="+cert, "and key_file ")
	plain := redistest.NewWithPort(t)
	refused(t, "rediss://"+plain.Address()+"/0?"+files, "is it TLS that it speaks on this port?")
	refused(t, "redis://"+at)
}

// A server that hangs takes no longer than the caller's deadline, and somewhat longer for a
// caller that gives up without a deadline.
func TestHungServer(t *testing.T) {
	s := redistest.New(t)
	p := newPool(t, s)
	p.acquire(p.provider)
	s.Signal(stop)
	defer s.Signal(resume)
	request := provider.AcquireRequest{RequestID: provider.NewSecret()}
	for _, want := range []error{context.DeadlineExceeded, context.Canceled} {
		ctx, cancel := context.WithCancel(context.Background())
		if want == context.DeadlineExceeded {
			ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
		} else {
			time.AfterFunc(time.Second, cancel)
		}
		defer cancel()
		if _, err := p.provider.Acquire(ctx, request); !errors.Is(err, want) { // seed 003-3.2-5
			t.Errorf("the error is %v, want %v", err, want)
		}
	}
	s.Signal(resume)
	// Whether the calls above were granted or not: one request has one lease.
	first, err := p.provider.Acquire(p.context(), request)
	must.Succeed(t, err)
	again, err := p.provider.Acquire(p.context(), request)
	if err != nil || again[0] != first[0] {
		t.Errorf("the request was answered with %v and %v (%v)", first, again, err)
	}
}

// Connections that were closed since the last call are not noticed by anybody.
func TestStaleConnections(t *testing.T) {
	s := redistest.New(t)
	p := newPool(t, s)
	for range 4 {
		s.Do(t, "CLIENT", "KILL", "TYPE", "normal")
		p.acquire(p.provider)
	}
}

func TestServersThatCannotBeUsed(t *testing.T) {
	s := redistest.NewWithPort(t)
	p := newPool(t, s)
	fails := func(setting, value, words string) {
		t.Helper()
		s.Do(t, "CONFIG", "SET", setting, value)
		if _, err := p.provider.Acquire(p.context(), provider.AcquireRequest{}); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", setting, err)
		}
		s.Do(t, "CONFIG", "SET", setting, "0")
	}
	fails("maxmemory", "1", "no memory left")
	fails("min-replicas-to-write", "1", "fewer good replicas")
	p.acquire(p.provider)
	replica := redistest.NewWithPort(t)
	replica.Follow(s)
	refused(t, "redis+unix:"+replica.Sock, "name its primary")
}
