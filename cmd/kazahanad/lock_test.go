package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/wire"
)

// lockArgs is lock on the site's daemon, with CMD as a shell script. more may name
// another way to the daemon.
func (s *site) lockArgs(key, script string, more ...string) []string {
	return append(append([]string{"lock", key, "--socket", s.socket}, more...), "--", "sh", "-c", script)
}

// lockStart starts it, and returns when the script has written its first line.
// The script's standard input ends with release.
func (s *site) lockStart(key, script string, more ...string) (d *instance, out *logBuffer, release func()) {
	s.t.Helper()
	cmd := s.command(s.lockArgs(key, script, more...)...)
	out = &logBuffer{}
	cmd.Stdout = out
	stdin, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	d = s.launchCommand(cmd)
	eventually(s.t, "the command runs", func() bool {
		select {
		case <-d.ended:
			s.t.Fatalf("lock ended: %v\n%s", d.err, d.log)
		default:
		}
		return strings.Contains(out.String(), "\n")
	})
	return d, out, func() { _ = stdin.Close() }
}

func (s *site) lockRun(key, script string, more ...string) outcome {
	s.t.Helper()
	return runCommand(s.t, s.command(s.lockArgs(key, script, more...)...))
}

// untilToldTo is a script that goes on until its standard input ends.
const untilToldTo = `echo started; read line; exit 0`

// lockOf is how the daemon shows a lock now.
func (c *client) lockOf(key string) (l lock.Answer) {
	c.t.Helper()
	c.must("Lock.Get", &l, key)
	return l
}

func (c *client) wantLock(key string, state lock.Status, token int64) lock.Answer {
	c.t.Helper()
	l := c.lockOf(key)
	if l.State != state || l.FencingToken != token {
		c.t.Errorf("lock %q is %+v, want it %s with token %d", key, l, state, token)
	}
	return l
}

// awaitWaiters returns when n requests wait, the last of them being that of a
// process that was just started: before it asks, the count can be one too high,
// because a request is counted until a moment after its answer.
func (c *client) awaitWaiters(n int, last *instance) {
	c.t.Helper()
	eventually(c.t, "it asks", func() bool { return strings.Contains(last.log.String(), "acquiring lock") })
	eventually(c.t, "it waits", func() bool { return c.status().InFlight == int64(n) })
}

func TestLockRunsACommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	c := s.dial()
	cmd := s.command(s.lockArgs("nightly report", `echo "$KAZAHANA_FENCING_TOKEN $KAZAHANA_LOCK_KEY $KAZAHANA_LEASE_ID"; read line; echo "$line"; exit 42`)...)
	cmd.Env = s.environment("KAZAHANA_FENCING_TOKEN=99", "KAZAHANA_LEASE_ID=outer")
	cmd.Stdin = strings.NewReader("hello\n")
	o := runCommand(t, cmd)
	l := c.wantLock("nightly report", lock.Released, 1)
	if want := "1 nightly report " + l.LeaseID + "\nhello\n"; o.code != 42 || o.stdout != want {
		t.Errorf("%+v, want the exit code 42 and %q", o, want)
	}
	for _, want := range []string{`acquiring lock "nightly report"`, "fencing token 1", "starting...", `releasing lock "nightly report"`} {
		if !strings.Contains(o.stderr, want) {
			t.Errorf("stderr does not say %q:\n%s", want, o.stderr)
		}
	}
	if o := s.lockRun("nightly report", "kill -USR1 $$", "-q"); o.code != 128+int(syscall.SIGUSR1) || o.stderr != "" {
		t.Errorf("killed by a signal: %+v", o)
	}
	if o := s.lockRun("nightly report", "echo $KAZAHANA_FENCING_TOKEN", "--quiet", "--wait", "0s"); o.ok(t) != "3\n" {
		t.Errorf("the third: %+v", o)
	}
	// CMD cannot be executed: the lock is not kept.
	writeFile(t, s.path("broken"), "\x7fELF")
	if err := os.Chmod(s.path("broken"), 0o755); err != nil {
		t.Fatal(err)
	}
	runCommand(t, s.command("lock", "broken", "--socket", s.socket, "--", s.path("broken"))).says(t, exitFailure, "cannot run", "broken")
	c.wantLock("broken", lock.Released, 1)
}

func TestLockErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, args := range []string{"", "k", "k true", "-- true", "k --", "k more -- true", "-q -- true"} {
		s.kazahanad(append([]string{"lock"}, strings.Fields(args)...)...).fails(t, exitUsage, "kazahanad lock nightly-report -- ./report")
	}
	run := func(args string) outcome { return s.kazahanad(append([]string{"lock"}, strings.Fields(args)...)...) }
	run("k --colour red -- true").fails(t, exitUsage, "--colour")
	run("k --ttl 900ms -- true").fails(t, exitUsage, "--ttl 900ms", "1s to 24h")
	run("k --ttl 25h -- true").fails(t, exitUsage, "--ttl 25h")
	run("k --ttl 1.0005s -- true").fails(t, exitUsage, "milliseconds")
	run("k --wait=-1s -- true").fails(t, exitUsage, "--wait -1s")
	run("k --timeout 0s -- true").fails(t, exitUsage, "--timeout 0s")
	run("k -- no-such-command").fails(t, exitFailure, "no-such-command", "not found")
	run("k -- true").fails(t, exitFailure, "no daemon's socket", "kazahanad serve")
	run("k --socket /nonexistent/d.sock -- true").says(t, exitFailure, "cannot connect", "kazahanad serve")
	s.start("--store", "none")
	run("k -- true").says(t, exitUsage, "NO_STORE", "store")
	s.kazahanad("locks").fails(t, exitUsage, "NO_STORE")
	s.kazahanad("seq", "k").fails(t, exitUsage, "NO_STORE")
	withStore := newSite(t)
	withStore.start()
	runCommand(t, withStore.command(withStore.lockArgs("a\x01b", "true")...)).says(t, exitUsage, "INVALID_PARAMS", "control character")
	runCommand(t, withStore.command(withStore.lockArgs("k", "true", "--wait", "25h")...)).says(t, exitUsage, "INVALID_PARAMS", "wait_ms")
}

func TestLockHeldBySomebodyElse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	c := s.dial()
	var held lock.Answer
	c.must("Lock.Acquire", &held, "k", map[string]any{"ttl_ms": 600_000})
	for _, wait := range []string{"0s", "300ms"} {
		o := s.lockRun("k", "echo ran", "--wait", wait)
		o.says(t, exitFailure, "LOCK_HELD", `lock "k" is held by `+held.OwnerID, "try again in 9m")
		if o.stdout != "" {
			t.Errorf("it ran all the same: %+v", o)
		}
	}
	if now := c.wantLock("k", lock.Active, 1); now.LeaseID != held.LeaseID {
		t.Errorf("%+v became %+v", held, now)
	}
}

func TestLockRenews(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	c := s.dial()
	d, out, _ := s.lockStart("k", `trap 'echo USR1' USR1; trap 'exit 5' TERM; echo started; while :; do sleep 0.05; done`, "--ttl", "6s")
	first := c.wantLock("k", lock.Active, 1)
	for last, renewals := first, 0; renewals < 2; {
		now := c.wantLock("k", lock.Active, 1)
		if now.LeaseID != first.LeaseID {
			t.Fatalf("%+v became %+v", first, now)
		}
		if now.ExpiresAt > last.ExpiresAt {
			last, renewals = now, renewals+1
		}
		time.Sleep(pollInterval)
	}
	_ = d.cmd.Process.Signal(syscall.SIGUSR1)
	eventually(t, "the command got the signal", func() bool { return strings.Contains(out.String(), "USR1\n") })
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	if code := d.code(); code != 5 {
		t.Errorf("exit code %d, want CMD's\n%s", code, d.log)
	}
	c.wantLock("k", lock.Released, 1)
}

// A term that was waited for begins when the wait ends: counted from when the
// request was sent, it would be over before CMD starts.
func TestLockTermBeginsAfterTheWait(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	c := s.dial()
	c.must("Lock.Acquire", nil, "k", map[string]any{"ttl_ms": 5000})
	if o := s.lockRun("k", "echo $KAZAHANA_FENCING_TOKEN", "--ttl", "4s", "--wait", "1m", "-q"); o.ok(t) != "2\n" {
		t.Errorf("%+v", o)
	}
	c.wantLock("k", lock.Released, 2)
}

// The lock is this process's, not the daemon's connection's: it outlives a kill.
func TestLockOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	daemon := s.start()
	d, _, release := s.lockStart("k", untilToldTo, "--ttl", "12s")
	first := s.dial().wantLock("k", lock.Active, 1)
	daemon.kill()
	s.start()
	c := s.dial()
	eventually(t, "it is renewed", func() bool {
		return c.wantLock("k", lock.Active, 1).ExpiresAt > first.ExpiresAt
	})
	if now := c.lockOf("k"); now.LeaseID != first.LeaseID {
		t.Errorf("%+v became %+v", first, now)
	}
	release()
	if code := d.code(); code != exitOK {
		t.Errorf("exit code %d\n%s", code, d.log)
	}
	c.wantLock("k", lock.Released, 1)
}

// While the daemon does not answer, CMD goes on until shortly before the end, and
// no longer: then another gets the lock, here through another daemon on the store.
func TestLockEndsCommandBeforeItIsLost(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, onTerm string
		code         int
	}{
		{"polite", "echo told; exit 0", exitFailure},
		{"with a code", "echo told; exit 9", 9},
		{"deaf", "echo told", 128 + int(syscall.SIGKILL)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, other := newSite(t), newSite(t)
			daemon := s.start()
			other.start("--store", "sqlite:"+s.path("state/store.db"))
			script := fmt.Sprintf(`trap '%s' TERM; while :; do date +%%s%%3N; sleep 0.02; done`, test.onTerm)
			d, out, _ := s.lockStart("k", script, "--ttl", "10s", "--timeout", "1s")
			_ = daemon.cmd.Process.Signal(syscall.SIGSTOP)
			var next lock.Answer
			other.dial().must("Lock.Acquire", &next, "k", map[string]any{"wait_ms": patience.Milliseconds()})
			code := d.code()
			_ = daemon.cmd.Process.Signal(syscall.SIGCONT)
			if code != test.code || !strings.Contains(out.String(), "told") {
				t.Errorf("exit code %d, want %d; stdout %q\n%s", code, test.code, out, d.log)
			}
			if want := `lock "k" could not be extended in time`; !strings.Contains(d.log.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, d.log)
			}
			acquired, err := time.Parse(time.RFC3339, next.AcquiredAt)
			if last := lastNumber(t, out.String()); err != nil || next.FencingToken != 2 || last >= acquired.UnixMilli() {
				t.Errorf("CMD still ran at %d, and at %d (%v) the lock was %+v", last, acquired.UnixMilli(), err, next)
			}
		})
	}
}

// lastNumber is the last line that is one.
func lastNumber(t *testing.T, text string) (last int64) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n, err := strconv.ParseInt(strings.TrimSuffix(line, "\n"), 10, 64); err == nil {
			last = n
		}
	}
	if last == 0 {
		t.Fatalf("there is no number in %q", text)
	}
	return last
}

// A lock that is somebody else's already ends CMD at once, and is left alone.
func TestLockTakenByAnother(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	c := s.dial()
	d, out, _ := s.lockStart("k", `trap 'echo told; exit 0' TERM; echo started; while :; do sleep 0.02; done`, "--ttl", "6s")
	c.must("Lock.Release", nil, "k")
	c.must("Lock.Acquire", nil, "k", map[string]any{"ttl_ms": 600_000})
	if code := d.code(); code != exitFailure || !strings.Contains(out.String(), "told") {
		t.Errorf("exit code %d; stdout %q\n%s", code, out, d.log)
	}
	if want := `lock "k" is lost: LOCK_NOT_OWNED`; !strings.Contains(d.log.String(), want) {
		t.Errorf("the log does not say %q:\n%s", want, d.log)
	}
	c.wantLock("k", lock.Active, 2)
}

// Those who wait come one after the other, in the order in which they came.
func TestLockContendersTakeTurns(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	c := s.dial()
	holder, _, release := s.lockStart("k", untilToldTo)
	var waiting []*instance
	for i, name := range []string{"B", "C", "D"} {
		script := fmt.Sprintf(`mkdir %[2]s/inside || echo not alone >>%[2]s/order; echo %[1]s $KAZAHANA_FENCING_TOKEN >>%[2]s/order; sleep 0.05; rmdir %[2]s/inside`, name, s.dir)
		waiting = append(waiting, s.launchCommand(s.command(s.lockArgs("k", script, "--wait", "5m")...)))
		c.awaitWaiters(i+1, waiting[i])
	}
	release()
	for _, d := range append(waiting, holder) {
		if code := d.code(); code != exitOK {
			t.Errorf("exit code %d\n%s", code, d.log)
		}
	}
	if order, err := os.ReadFile(s.path("order")); err != nil || string(order) != "B 2\nC 3\nD 4\n" {
		t.Errorf("they came as %q (%v)", order, err)
	}
}

func TestLockInterruptedWhileWaiting(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	c := s.dial()
	holder, _, release := s.lockStart("k", untilToldTo)
	waiter := s.launchCommand(s.command(s.lockArgs("k", "echo ran", "--wait", "1h")...))
	c.awaitWaiters(1, waiter)
	_ = waiter.cmd.Process.Signal(syscall.SIGINT)
	if code := waiter.code(); code != 128+int(syscall.SIGINT) {
		t.Errorf("exit code %d\n%s", code, waiter.log)
	}
	eventually(t, "nobody waits", func() bool { return c.status().InFlight == 0 })
	c.wantLock("k", lock.Active, 1)
	release()
	holder.awaitEnd()
	c.wantLock("k", lock.Released, 1)
}

// Granted, and interrupted before the answer came: nobody has the lock then.
func TestLockAbandonedIsReleased(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	c := s.dial()
	way := s.lossy("Lock.Acquire", false)
	d := s.launchCommand(s.command(s.lockArgs("k", "echo ran", "--socket", way.socket)...))
	<-way.lost
	c.wantLock("k", lock.Active, 1)
	_ = d.cmd.Process.Signal(syscall.SIGINT)
	if code := d.code(); code != 128+int(syscall.SIGINT) {
		t.Errorf("exit code %d\n%s", code, d.log)
	}
	c.wantLock("k", lock.Released, 1)
}

// An acquire whose answer is lost is asked for again, not acquired again.
func TestLockAnswerIsLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	for i, method := range []string{"Lock.Acquire", "Lock.Release"} {
		way := s.lossy(method, true)
		o := s.lockRun("k", "echo $KAZAHANA_FENCING_TOKEN", "--socket", way.socket, "--wait", "0s")
		if o.code != exitOK || o.stdout != fmt.Sprintf("%d\n", i+1) || strings.Contains(o.stderr, "not released") {
			t.Errorf("%s: %+v", method, o)
		}
		<-way.lost
		s.dial().wantLock("k", lock.Released, int64(i+1))
	}
}

// With -9, on Linux, CMD ends too, and the lock with its term.
func TestLockKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	c := s.dial()
	d, out, _ := s.lockStart("k", `echo $$; exec sleep 600`, "--ttl", "10s")
	pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil || !alive(pid) {
		t.Fatalf("CMD is process %q: %v", out, err)
	}
	d.kill()
	if _, err := os.Stat("/proc/self/stat"); err == nil { // Linux
		eventually(t, "CMD has ended with kazahanad", func() bool { return !alive(pid) })
	}
	var held *wire.Error
	if err := c.try("Lock.Acquire", nil, "k"); !errors.As(err, &held) || held.Code != wire.CodeLockHeld {
		t.Errorf("the lock of a process that may be alive: %v", err)
	}
	var next lock.Answer
	c.must("Lock.Acquire", &next, "k", map[string]any{"wait_ms": patience.Milliseconds()})
	if next.FencingToken != 2 {
		t.Errorf("the next is %+v", next)
	}
}

// The end is counted from before the request, and never beyond a term from then.
func TestLockEndIsCountedFromTheRequest(t *testing.T) {
	for expiresInMS, want := range map[int64]time.Duration{29_000: 129 * time.Second, 0: 100 * time.Second, 3_600_000: 130 * time.Second} {
		h := &heldLock{ttl: 30 * time.Second}
		if h.count(100*time.Second, lock.Answer{ExpiresInMS: expiresInMS}); h.end != want {
			t.Errorf("%d ms after 100s end at %v, want %v", expiresInMS, h.end, want)
		}
	}
}

// lossy is a way to the daemon that loses the answer to the first request of a
// method, after it was carried out.
type lossy struct {
	socket string
	method []byte
	cut    bool // the connection breaks; else nothing comes
	taken  atomic.Bool
	lost   chan struct{} // closed when the answer is lost
}

func (s *site) lossy(method string, cut bool) *lossy {
	s.t.Helper()
	way := &lossy{socket: s.path("way-" + method + ".sock"), method: []byte(method), cut: cut, lost: make(chan struct{})}
	listener, err := net.Listen("unix", way.socket)
	if err != nil {
		s.t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { way.carry(client, s.socket) })
		}
	})
	s.t.Cleanup(func() {
		_ = listener.Close()
		all.Wait()
	})
	return way
}

func (w *lossy) carry(client net.Conn, socket string) {
	defer client.Close()
	daemon, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	var loses atomic.Bool
	answers := make(chan struct{})
	go func() {
		defer close(answers)
		var b [4096]byte
		for {
			n, err := daemon.Read(b[:])
			switch {
			case err != nil:
				return
			case !loses.Load():
				_, _ = client.Write(b[:n])
				continue
			}
			close(w.lost)
			if w.cut {
				_ = client.Close()
			}
			_, _ = io.Copy(io.Discard, daemon)
			return
		}
	}()
	var b [4096]byte
	for {
		n, err := client.Read(b[:])
		if err != nil {
			break
		}
		if bytes.Contains(b[:n], w.method) && w.taken.CompareAndSwap(false, true) {
			loses.Store(true)
		}
		_, _ = daemon.Write(b[:n])
	}
	_ = daemon.Close()
	<-answers
}
