package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// lockArgs is lock on the site's daemon, with CMD as a shell script. more may name
// another way to the daemon.
func (s *site) lockArgs(key, script string, more ...string) []string {
	return append(append([]string{"lock", key, "--socket", s.Socket}, more...), "--", "sh", "-c", script)
}

// lockStart starts it, and returns when the script has written its first line.
// The script's standard input ends with release.
func (s *site) lockStart(key, script string, more ...string) (d *testkit.Instance, out *testkit.Log, release func()) {
	s.T.Helper()
	cmd := s.Command(s.lockArgs(key, script, more...)...)
	stdin, err := cmd.StdinPipe()
	must.Succeed(s.T, err)
	d, out = s.firstLine(cmd)
	return d, out, func() { _ = stdin.Close() }
}

func (s *site) lockRun(key, script string, more ...string) testkit.Outcome {
	s.T.Helper()
	return testkit.RunCommand(s.T, s.Command(s.lockArgs(key, script, more...)...))
}

// untilToldTo is a script that goes on until its standard input ends.
const untilToldTo = `echo started; read line; exit 0`

func TestLockRunsACommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	c := s.Dial()
	cmd := s.Command(s.lockArgs("nightly report", `echo "$KAZAHANA_FENCING_TOKEN $KAZAHANA_LOCK_KEY $KAZAHANA_LEASE_ID"; read line; echo "$line"; exit 42`)...)
	cmd.Env = s.Environment("KAZAHANA_FENCING_TOKEN=99", "KAZAHANA_LEASE_ID=outer")
	cmd.Stdin = strings.NewReader("hello\n")
	o := testkit.RunCommand(t, cmd)
	l := c.WantLock("nightly report", lock.Released, 1)
	if want := "1 nightly report " + l.LeaseID + "\nhello\n"; o.Code != 42 || o.Stdout != want {
		t.Errorf("%+v, want the exit code 42 and %q", o, want)
	}
	for _, want := range []string{`acquiring lock "nightly report"`, "fencing token 1", "starting...", `releasing lock "nightly report"`} {
		if !strings.Contains(o.Stderr, want) {
			t.Errorf("stderr does not say %q:\n%s", want, o.Stderr)
		}
	}
	if o := s.lockRun("nightly report", "kill -USR1 $$", "-q"); o.Code != 128+int(syscall.SIGUSR1) || o.Stderr != "" {
		t.Errorf("killed by a signal: %+v", o)
	}
	if o := s.lockRun("nightly report", "echo $KAZAHANA_FENCING_TOKEN", "--quiet", "--wait", "0s"); o.OK(t) != "3\n" {
		t.Errorf("the third: %+v", o)
	}
	// CMD cannot be executed: the lock is not kept.
	testkit.WriteFile(t, s.Path("broken"), "\x7fELF")
	must.Succeed(t, os.Chmod(s.Path("broken"), 0o755))
	testkit.RunCommand(t, s.Command("lock", "broken", "--socket", s.Socket, "--", s.Path("broken"))).Says(t, exitFailure, "cannot run", "broken")
	c.WantLock("broken", lock.Released, 1)
}

func TestLockErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, args := range []string{"", "k", "k true", "-- true", "k --", "k more -- true", "-q -- true"} {
		s.Kazahanad(append([]string{"lock"}, strings.Fields(args)...)...).Fails(t, exitUsage, "kazahanad lock nightly-report -- ./report")
	}
	run := func(args string) testkit.Outcome {
		return s.Kazahanad(append([]string{"lock"}, strings.Fields(args)...)...)
	}
	run("k --colour red -- true").Fails(t, exitUsage, "--colour")
	run("k --ttl 900ms -- true").Fails(t, exitUsage, "--ttl", "900ms", "the least is 1s")
	run("k -- no-such-command").Fails(t, exitFailure, "no-such-command", "not found")
	run("k -- true").Fails(t, exitFailure, "no daemon's socket", "kazahanad serve")
	run("k --socket /nonexistent/d.sock -- true").Says(t, exitFailure, "cannot connect", "kazahanad serve")
	s.Start("--store", "none")
	run("k -- true").Says(t, exitUsage, "NO_STORE", "store")
	s.Kazahanad("locks").Fails(t, exitUsage, "NO_STORE")
	s.Kazahanad("seq", "k").Fails(t, exitUsage, "NO_STORE")
	withStore := newSite(t)
	withStore.Start()
	testkit.RunCommand(t, withStore.Command(withStore.lockArgs("a\x01b", "true")...)).Says(t, exitUsage, "INVALID_PARAMS", "control character")
	testkit.RunCommand(t, withStore.Command(withStore.lockArgs("k", "true", "--wait", "25h")...)).Says(t, exitUsage, "INVALID_PARAMS", "wait_ms")
}

func TestLockHeldBySomebodyElse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	c := s.Dial()
	var held lock.Answer
	c.Must("Lock.Acquire", &held, "k", map[string]any{"ttl_ms": 600_000})
	for _, wait := range []string{"0s", "300ms"} {
		o := s.lockRun("k", "echo ran", "--wait", wait)
		o.Says(t, exitFailure, "LOCK_HELD", `lock "k" is held by `+held.OwnerID, "try again in 9m")
		if o.Stdout != "" {
			t.Errorf("it ran all the same: %+v", o)
		}
	}
	if now := c.WantLock("k", lock.Active, 1); now.LeaseID != held.LeaseID {
		t.Errorf("%+v became %+v", held, now)
	}
}

// The lock is this process's, not the daemon's connection's: it outlives a kill.
func TestLockOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	daemon := s.Start()
	d, _, release := s.lockStart("k", untilToldTo, "--ttl", "1m")
	first := s.Dial().WantLock("k", lock.Active, 1)
	daemon.Kill()
	s.Start()
	c := s.Dial()
	await.Eventually(t, "it is renewed", func() bool {
		return c.WantLock("k", lock.Active, 1).ExpiresAt > first.ExpiresAt
	})
	if now := c.LockOf("k"); now.LeaseID != first.LeaseID {
		t.Errorf("%+v became %+v", first, now)
	}
	release()
	if code := d.Code(); code != exitOK {
		t.Errorf("exit code %d\n%s", code, d.Log)
	}
	c.WantLock("k", lock.Released, 1)
}

// While the daemon does not answer, CMD goes on until shortly before the end, and
// no longer: then another gets the lock, here through another daemon on the store.
func TestLockEndsCommandBeforeItIsLost(t *testing.T) {
	t.Parallel()
	s, other := newSite(t), newSite(t)
	store := s.StartLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+s.Leases()).URL()
	daemon := s.Start("--store", store)
	other.Start("--store", store)
	d, out, _ := s.lockStart("k", `trap 'echo told' TERM; while :; do date +%s%3N; sleep 0.02; done`, "--ttl", "40s", "--timeout", "5s")
	daemon.Freeze()
	var next lock.Answer
	other.Dial().Must("Lock.Acquire", &next, "k", map[string]any{"wait_ms": await.Patience.Milliseconds()})
	code := d.Code()
	_ = daemon.Cmd.Process.Signal(syscall.SIGCONT)
	if code != 128+int(syscall.SIGKILL) || !strings.Contains(out.String(), "told") {
		t.Errorf("exit code %d; stdout %q\n%s", code, out, d.Log)
	}
	if want := `lock "k" could not be extended in time`; !strings.Contains(d.Log.String(), want) {
		t.Errorf("the log does not say %q:\n%s", want, d.Log)
	}
	acquired, err := time.Parse(time.RFC3339, next.AcquiredAt)
	if last := lastNumber(t, out.String()); err != nil || next.FencingToken != 2 || last >= acquired.UnixMilli() {
		t.Errorf("CMD still ran at %d, and at %d (%v) the lock was %+v", last, acquired.UnixMilli(), err, next)
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

// A lock that is another holder's already ends CMD at once, and is left alone.
func TestLockTakenByAnother(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	c := s.Dial()
	d, out, _ := s.lockStart("k", `trap 'echo told; exit 0' TERM; echo started; while :; do sleep 0.02; done`, "--ttl", "30s")
	c.Must("Lock.Release", nil, "k")
	c.Must("Lock.Acquire", nil, "k", map[string]any{"ttl_ms": 600_000})
	if code := d.Code(); code != exitFailure || !strings.Contains(out.String(), "told") {
		t.Errorf("exit code %d; stdout %q\n%s", code, out, d.Log)
	}
	if want := `lock "k" is lost: LOCK_NOT_OWNED`; !strings.Contains(d.Log.String(), want) {
		t.Errorf("the log does not say %q:\n%s", want, d.Log)
	}
	c.WantLock("k", lock.Active, 2)
}

// An acquire with a lost answer is asked for again, not acquired again.
func TestLockAnswerIsLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	for i, method := range []string{"Lock.Acquire", "Lock.Release"} {
		way := s.lossy(method, true)
		o := s.lockRun("k", "echo $KAZAHANA_FENCING_TOKEN", "--socket", way.socket, "--wait", "0s")
		if o.Code != exitOK || o.Stdout != fmt.Sprintf("%d\n", i+1) || strings.Contains(o.Stderr, "not released") {
			t.Errorf("%s: %+v", method, o)
		}
		<-way.lost
		s.Dial().WantLock("k", lock.Released, int64(i+1))
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
	s.T.Helper()
	way := &lossy{socket: s.Path("way-" + method + ".sock"), method: []byte(method), cut: cut, lost: make(chan struct{})}
	listener, err := net.Listen("unix", way.socket)
	must.Succeed(s.T, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { way.carry(client, s.Socket) })
		}
	})
	s.T.Cleanup(func() {
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

// Granted, and interrupted before the answer came: no one has the lock then.
func TestLockAbandonedIsReleased(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	c := s.Dial()
	way := s.lossy("Lock.Acquire", false)
	d := s.LaunchCommand(s.Command(s.lockArgs("k", "echo ran", "--socket", way.socket)...))
	<-way.lost
	c.WantLock("k", lock.Active, 1)
	_ = d.Cmd.Process.Signal(syscall.SIGINT)
	if code := d.Code(); code != 128+int(syscall.SIGINT) {
		t.Errorf("exit code %d\n%s", code, d.Log)
	}
	c.WantLock("k", lock.Released, 1)
}

// A term that was waited for begins when the wait ends: counted from when the
// request was sent, it would be over before CMD starts.
func TestLockTermBeginsAfterTheWait(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	c := s.Dial()
	c.Must("Lock.Acquire", nil, "k", map[string]any{"ttl_ms": 24_000})
	if o := s.lockRun("k", "echo $KAZAHANA_FENCING_TOKEN", "--ttl", "20s", "--wait", "2m", "-q"); o.OK(t) != "2\n" {
		t.Errorf("%+v", o)
	}
	c.WantLock("k", lock.Released, 2)
}

// And it outlives a new name of the host, and the loss of the live directory: what a
// new pod or container of the daemon has.
func TestLockOutlivesTheDaemonsContainer(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := newSite(t)
	daemon := s.Start()
	d, _, release := s.lockStart("k", untilToldTo, "--ttl", "1m")
	first := s.Dial().WantLock("k", lock.Active, 1)
	daemon.Kill()
	if s.Live != "none" {
		must.Succeed(t, os.RemoveAll(s.Live))
	}
	serve := append([]string{"-u", "sh", "-c", `hostname renamed && exec "$@"`, "sh"}, s.Command(s.ServeArgs()...).Args...)
	renamed := exec.Command("unshare", serve...)
	renamed.Env = s.Environment()
	s.LaunchCommand(renamed).AwaitReady()
	c := s.Dial()
	release()
	if code := d.Code(); code != exitOK {
		t.Errorf("exit code %d\n%s", code, d.Log)
	}
	if last := c.WantLock("k", lock.Released, 1); last.OwnerID != first.OwnerID {
		t.Errorf("%+v became %+v", first, last)
	}
}
