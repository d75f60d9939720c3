package doctor

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/provider"
	redisprovider "github.com/kazahana/kazahana/internal/provider/redis"
	"github.com/kazahana/kazahana/internal/provider/sqlite"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/certtest"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestMain(m *testing.M) { os.Exit(redistest.Run(m)) }

// limit bounds a probe, on a machine that is busy with other things.
const limit = 60 * time.Second

func looking(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// want compares the codes of findings.
func want(t *testing.T, what string, found []Finding, codesWanted string) {
	t.Helper()
	if got := codes(found); got != codesWanted {
		t.Errorf("%s: %q, want %q: %+v", what, got, codesWanted, found)
	}
}

func lookAtRedis(t *testing.T, cfg redisconn.Config) []Finding {
	t.Helper()
	var clock Clock
	usable := func(ctx context.Context) error {
		p, err := redisprovider.Open(ctx, redisprovider.Config{Config: cfg, Services: provider.Services{Default: provider.DefaultTerms()}})
		if err != nil {
			return err
		}
		return p.Close()
	}
	r := ProbeRedis(looking(t), cfg, usable, &clock)
	if r.Err == nil && (clock.Compared != r.Place || clock.Ahead.Abs() > clock.Within+time.Second) {
		t.Errorf("the clock that both share is %+v", clock)
	}
	return JudgeRedis(r)
}

func TestRedisFaults(t *testing.T) {
	t.Parallel()
	s := redistest.New(t, "--appendonly", "yes", "--save", "3600 1")
	cfg := s.Config()
	want(t, "a good server", lookAtRedis(t, cfg), "redis.ok")
	if keys := s.Do(t, "DBSIZE"); keys != "0" {
		t.Errorf("the look left %s keys", keys)
	}

	s.Do(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	want(t, "eviction", lookAtRedis(t, cfg), "redis.eviction")
	s.Do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")

	s.Do(t, "CONFIG", "SET", "maxmemory", strconv.Itoa(usedMemory(t, s)*21/20))
	want(t, "little memory", lookAtRedis(t, cfg), "redis.memory")
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")

	s.Do(t, "CONFIG", "SET", "appendonly", "no")
	want(t, "snapshots", lookAtRedis(t, cfg), "redis.aof_off")
	s.Do(t, "CONFIG", "SET", "save", "")
	want(t, "no persistence", lookAtRedis(t, cfg), "redis.no_persistence")

	s.Kill()
	want(t, "a killed server", lookAtRedis(t, cfg), "redis.unreachable")
}

// A server whose directory is gone cannot write its snapshot.
func TestRedisCannotWrite(t *testing.T) {
	t.Parallel()
	lost := filepath.Join(t.TempDir(), "lost")
	must.Succeed(t, os.Mkdir(lost, 0o700))
	s := redistest.New(t, "--dir", lost, "--save", "3600 1")
	must.Succeed(t, os.RemoveAll(lost))
	s.Do(t, "BGSAVE")
	await.Success(t, "the snapshot fails", func() error {
		if !strings.Contains(s.Do(t, "INFO", "persistence"), "rdb_last_bgsave_status:err") {
			return errors.New("not yet")
		}
		return nil
	})
	// Redis refuses writes from then on, which the provider says too.
	found := lookAtRedis(t, s.Config())
	if got := codes(found); !strings.HasSuffix(got, "redis.aof_off redis.write_errors") {
		t.Errorf("a failed snapshot: %q, %+v", got, found)
	}
}

func usedMemory(t *testing.T, s *redistest.Server) int {
	t.Helper()
	_, rest, _ := strings.Cut(s.Do(t, "INFO", "memory"), "used_memory:")
	text, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.Atoi(text)
	must.Succeed(t, err)
	return n
}

func TestRedisReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.Pair(t, "--appendonly", "yes")
	cfg := primary.Config()
	want(t, "nobody waits for the replica", lookAtRedis(t, cfg), "redis.unconfirmed")
	cfg.MinReplicas = 1
	want(t, "it is waited for", lookAtRedis(t, cfg), "redis.ok")
	cfg.MinReplicas = 2
	want(t, "there are too few", lookAtRedis(t, cfg), "redis.replicas_missing")
	want(t, "a replica", lookAtRedis(t, replica.Config()), "redis.replica")
}

func TestRedisRights(t *testing.T) {
	t.Parallel()
	const password = "hunter2hunter2"
	s := redistest.New(t, "--appendonly", "yes")
	s.Do(t, "ACL", "SETUSER", "reader", "on", ">"+password, "~*", "+@all", "-hset")
	s.Do(t, "ACL", "SETUSER", "blind", "on", ">"+password, "~*", "+@all", "-info")
	file := filepath.Join(t.TempDir(), "password")
	as := func(user, secret string) []Finding {
		t.Helper()
		must.Succeed(t, os.WriteFile(file, []byte(secret), 0o600))
		cfg := s.Config()
		cfg.Username, cfg.PasswordFile = user, file
		found := lookAtRedis(t, cfg)
		if strings.Contains(fmt.Sprint(found), secret) {
			t.Errorf("a password is shown: %+v", found)
		}
		return found
	}
	want(t, "a user who may not write", as("reader", password), "redis.refused")
	want(t, "a user who may not look", as("blind", password), "redis.unlooked")
	want(t, "a wrong password", as("reader", "wrong"+password), "redis.unreachable")
}

func lookAtEtcd(t *testing.T, members ...*etcdtest.Member) []Finding {
	t.Helper()
	cfg := etcdconn.Config{Prefix: etcdconn.DefaultPrefix}
	for _, m := range members {
		cfg.Endpoints = append(cfg.Endpoints, m.Client)
	}
	e := ProbeEtcd(looking(t), cfg, func(context.Context) error { return nil })
	for i, m := range e.Members {
		if m.Err == nil && (!m.before(4, 0, 0) || m.before(3, 4, 0)) {
			t.Errorf("%s says that it has the version %q", m.Endpoint, m.Version)
		}
		e.Members[i].Version = goodMember.Version // of the version here, doctor may warn
	}
	return JudgeEtcd(e)
}

func TestEtcdFaults(t *testing.T) {
	t.Parallel()
	members := etcdtest.Cluster(t, 3, "http")
	want(t, "a good cluster", lookAtEtcd(t, members...), "etcd.ok")
	want(t, "one address", lookAtEtcd(t, members[0]), "etcd.single")
	members[2].Kill()
	comes := func(codesWanted string) { // once the others have noticed
		t.Helper()
		await.Success(t, codesWanted, func() error {
			if found := codes(lookAtEtcd(t, members...)); found != codesWanted {
				return errors.New(found)
			}
			return nil
		})
	}
	comes("etcd.member")
	members[1].Kill()
	comes("etcd.no_leader etcd.member etcd.member etcd.unlooked") // without a majority nobody tells the alarms
	members[0].Kill()
	want(t, "all away", lookAtEtcd(t, members...), "etcd.unreachable")
}

func TestEtcdOutOfSpace(t *testing.T) {
	t.Parallel()
	member := etcdtest.Cluster(t, 1, "http", "--quota-backend-bytes", strconv.Itoa(1<<20))[0]
	cl, err := etcdtest.NewClient(clientv3.Config{Endpoints: []string{member.Client}})
	must.Succeed(t, err)
	defer cl.Close()
	value := strings.Repeat("x", 256<<10)
	await.Success(t, "the quota is used up", func() error {
		if _, err := cl.Put(looking(t), "k", value); err == nil {
			return errors.New("it takes more")
		}
		return nil
	})
	// Versions before 3.6 do not tell the quota, and take this for little.
	found := codes(lookAtEtcd(t, member))
	if found != "etcd.alarm etcd.single" && found != "etcd.space etcd.alarm etcd.single" {
		t.Errorf("with an alarm: %s", found)
	}
}

// server is what answers in a lease server's place.
func server(t *testing.T, listen string, tlsConfig *tls.Config, answer http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		t.Skipf("this host cannot listen on %s: %v", listen, err)
	}
	s := httptest.NewUnstartedServer(answer)
	_ = s.Listener.Close()
	s.Listener, s.TLS = l, tlsConfig
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that do not trust it are its matter here
	if tlsConfig != nil {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s.URL
}

func lookAtHTTP(t *testing.T, address, caFile string, token error) (found []Finding, clock Clock) {
	t.Helper()
	u, err := url.Parse(address)
	must.Succeed(t, err)
	clock = Clock{Known: true, Synchronised: true}
	for _, h := range ProbeHTTP(looking(t), httpconn.Config{Servers: []*url.URL{u}, CAFile: caFile},
		func(context.Context) error { return token }, &clock) {
		found = append(found, JudgeHTTP(h, time.Now())...)
	}
	return found, clock
}

func ready(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/readyz" || r.Method != http.MethodGet {
		http.Error(w, "that is no question", http.StatusTeapot)
	}
}

func TestHTTPFaults(t *testing.T) {
	t.Parallel()
	const here = "127.0.0.1:0"
	good := server(t, here, nil, ready)
	found, clock := lookAtHTTP(t, good, "", nil)
	want(t, "a good server", found, "http.ok")
	want(t, "its clock", JudgeClock(clock), "clock.ok")
	if clock.Compared != good {
		t.Errorf("the clock was compared with that of %q", clock.Compared)
	}
	found, _ = lookAtHTTP(t, good, "", errFault)
	want(t, "a token that is not taken", found, "http.refused")

	found, _ = lookAtHTTP(t, server(t, here, nil, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the store is away", http.StatusServiceUnavailable)
	}), "", nil)
	want(t, "a store that is away", found, "http.not_ready")
	if !strings.Contains(found[0].Says, "the store is away") {
		t.Errorf("%+v", found)
	}

	found, _ = lookAtHTTP(t, server(t, here, nil, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such path", http.StatusNotFound)
	}), "", nil)
	want(t, "a server that others have written, without /readyz", found, "http.ok")

	for off, code := range map[time.Duration]string{time.Hour: "clock.wrong", -time.Hour: "clock.wrong", 10 * time.Second: "clock.skew"} {
		_, clock = lookAtHTTP(t, server(t, here, nil, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(off).UTC().Format(http.TimeFormat))
		}), "", nil)
		want(t, fmt.Sprintf("a clock that is %v ahead", off), JudgeClock(clock), code)
	}

	found, _ = lookAtHTTP(t, fmt.Sprintf("http://127.0.0.1:%d", ring.FreePort(t)), "", nil)
	want(t, "nobody there", found, "http.unreachable")
}

func TestHTTPCertificates(t *testing.T) {
	t.Parallel()
	authority := certtest.New(t, "authority") // its certificates end in an hour
	certificate, err := tls.LoadX509KeyPair(authority.Issue("server"))
	must.Succeed(t, err)
	address := server(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}}, ready)
	found, _ := lookAtHTTP(t, address, authority.File, nil)
	want(t, "a certificate that ends soon", found, "http.certificate")
	found, _ = lookAtHTTP(t, address, "", nil)
	want(t, "an authority that is not known", found, "http.unreachable")
}

func TestHTTPInPlainText(t *testing.T) {
	t.Parallel()
	all, err := net.InterfaceAddrs()
	must.Succeed(t, err)
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			found, _ := lookAtHTTP(t, server(t, ip.IP.String()+":0", nil, ready), "", nil)
			want(t, "no TLS to "+ip.IP.String(), found, "http.plain")
			return
		}
	}
	t.Skip("this host has no address but its own")
}

// snapshot is everything in a directory, as it is.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		fmt.Fprintf(&all, "%s %v %v %x\n", path, info.Mode(), info.ModTime(), content)
		return err
	})
	must.Succeed(t, err)
	return all.String()
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	must.Succeed(t, os.CopyFS(to, os.DirFS(from)))
	return to
}

func TestSQLiteFaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "leases.db")
	id, latest := sqlite.Header()
	judge := func(path string) []Finding {
		t.Helper()
		f := ProbeSQLite(looking(t), path)
		f.FS = FileSystem{Type: "ext4", Free: 1 << 40} // whatever the tests run on
		return JudgeSQLite(f, id, latest)
	}
	look := func(path string) []Finding {
		t.Helper()
		before := snapshot(t, filepath.Dir(path))
		found := judge(path)
		if after := snapshot(t, filepath.Dir(path)); after != before {
			t.Errorf("looking changed something:\n%s\n%s", before, after)
		}
		return found
	}
	want(t, "no file", look(path), "sqlite.new")
	p, err := sqlite.Open(looking(t), sqlite.Config{Path: path, Services: provider.Services{Default: provider.DefaultTerms()}})
	must.Succeed(t, err)
	if _, err := p.Acquire(looking(t), provider.AcquireRequest{Service: "default", ThroughputPerMS: 256, RequestID: "0123456789abcdef0123456789abcdef"}); err != nil {
		t.Fatal(err)
	}
	want(t, "a file in use", judge(path), "sqlite.ok")
	crashed := filepath.Join(copyDir(t, dir), "leases.db")
	if _, err := os.Stat(crashed + "-wal"); err != nil {
		t.Fatal(err)
	}
	want(t, "a copy of a crash", look(crashed), "sqlite.copy")
	must.Succeed(t, p.Close())
	want(t, "a file at rest", look(path), "sqlite.ok")
	used, err := sqlite.Open(looking(t), sqlite.Config{Path: crashed, Services: provider.Services{Default: provider.DefaultTerms()}})
	must.Succeed(t, err)
	must.Succeed(t, used.Close())
	want(t, "a copy in use", look(crashed), "sqlite.fenced")

	change := func(statement string) string {
		t.Helper()
		changed := filepath.Join(copyDir(t, dir), "leases.db")
		db, err := sql.Open("sqlite", changed)
		must.Succeed(t, err)
		_, err = db.Exec(statement)
		must.Succeed(t, errors.Join(err, db.Close()))
		return changed
	}
	want(t, "no log", look(change("PRAGMA journal_mode=delete")), "sqlite.journal")
	want(t, "a newer version", look(change("PRAGMA user_version=99")), "sqlite.foreign")
	want(t, "another program's", look(change("PRAGMA application_id=7")), "sqlite.foreign")

	damaged := filepath.Join(copyDir(t, dir), "leases.db")
	content, err := os.ReadFile(damaged)
	must.Succeed(t, err)
	for i := 4096; i < len(content); i++ {
		content[i] ^= 0xff
	}
	must.Succeed(t, os.WriteFile(damaged, content, 0o600))
	want(t, "damaged pages", look(damaged), "sqlite.damaged")
	if err := os.WriteFile(damaged, []byte("this is a letter, and long enough to be mistaken for something else by somebody who does not look at its beginning"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, "no database", look(damaged), "sqlite.foreign")
}

// Not parallel: a process that another test starts keeps, until it runs its own program, the
// lock of a state directory that this one has closed.
func TestStateFaults(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	live := disktest.Memory(t)
	opts := state.Options{Live: live}
	look := func(path string) []Finding {
		t.Helper()
		before := snapshot(t, filepath.Dir(path))
		s := ProbeStateDir(path)
		s.DaemonUID = uint32(os.Geteuid())
		s.FS = FileSystem{Type: "ext4", Free: 1 << 40} // whatever the tests run on
		if after := snapshot(t, filepath.Dir(path)); after != before {
			t.Errorf("looking changed something:\n%s\n%s", before, after)
		}
		return JudgeStateDir(s)
	}
	want(t, "nothing there", look(dir), "state.new")
	s, err := state.Open(context.Background(), dir, opts)
	must.Succeed(t, err)
	service, err := s.Service("orders")
	must.Succeed(t, err)
	offered := snowflake.DefaultTimeline()
	offered.EpochMS += 1000
	saved := state.Saved{Timeline: snowflake.DefaultTimeline(), Source: state.SourceLease, Offered: &offered}
	must.Succeed(t, service.Save(saved))
	want(t, "in use, and an epoch was refused", look(dir), "state.refused_epoch state.in_use")
	saved.Offered = nil
	must.Succeed(t, service.Save(saved))
	must.Succeed(t, s.Close())
	want(t, "at rest", look(dir), "state.ok")

	if s, err = state.Open(context.Background(), dir, opts); err != nil {
		t.Fatal(err)
	}
	if service, err = s.Service("orders"); err != nil {
		t.Fatal(err)
	}
	service.RaiseMark(time.Now().Add(2 * markAhead).UnixMilli())
	must.Succeed(t, s.Close())
	want(t, "a mark far ahead", look(dir), "state.mark_ahead")
	if _, err := state.ResetFloor(context.Background(), dir, "", time.Now().UnixMilli(), opts); err != nil {
		t.Fatal(err)
	}
	want(t, "after reset-floor", look(dir), "state.ok")

	if s, err = state.Open(context.Background(), dir, opts); err != nil {
		t.Fatal(err)
	}
	folder := s.Health().Live
	must.Succeed(t, s.Close())
	must.Succeed(t, os.Truncate(filepath.Join(folder, "marks"), 4096))
	want(t, "the marks were cut short", look(dir), "state.live_damaged")
	must.Succeed(t, os.RemoveAll(folder))
	want(t, "after a boot", look(dir), "state.ok")

	must.Succeed(t, os.Chmod(dir, 0o777))
	want(t, "open to everybody", look(dir), "state.open")
	must.Succeed(t, os.Chmod(dir, 0o700))
	want(t, "a file", look(filepath.Join(dir, "state")), "state.not_a_directory")

	lost := copyDir(t, dir)
	must.Succeed(t, os.WriteFile(filepath.Join(lost, "state"), []byte("x"), 0o600))
	found := look(lost)
	want(t, "a damaged file", found, "state.damaged")
	if !strings.HasPrefix(found[0].Says, filepath.Join(lost, "state")+": ") {
		t.Errorf("the damaged file is named by %q", found[0].Says)
	}
}
