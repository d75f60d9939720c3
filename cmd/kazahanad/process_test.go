package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// patience is how long anything may take on a machine that is busy with
	// other things. Only a test that fails waits for so long.
	patience = 45 * time.Second
	// pollInterval is how often a condition is looked at.
	pollInterval = 5 * time.Millisecond
)

// eventually waits until ok reports true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// site is where the daemons of one test live.
type site struct {
	t      *testing.T
	dir    string // open to everybody, and short: a socket's path may have 103 bytes
	socket string
	state  string
	live   string // "none" where there is no file system in memory
	env    []string
	host   string // what launchShifted calls the host; "" = by its own name
}

func newSite(t *testing.T) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "kz-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return &site{t: t, dir: dir, socket: filepath.Join(dir, "d.sock"), state: filepath.Join(dir, "state"), live: siteLiveDir(t)}
}

// siteLiveDir names a live directory, which a daemon of any user can make. No test
// uses one of those that the machine's own daemons have.
func siteLiveDir(t *testing.T) string {
	t.Helper()
	const shm = "/dev/shm"
	if !state.InMemory(shm) {
		return "none"
	}
	dir, err := os.MkdirTemp(shm, "kz-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "live")
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// environment is what processes of the site have, and nothing of the person's
// who runs the tests.
func (s *site) environment(more ...string) []string {
	// With the race detector every process would sleep a second when it ends.
	own := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "GORACE=atexit_sleep_ms=0", "KAZAHANA_LIVE_DIR=" + s.live}
	return slices.Concat(own, s.env, more)
}

// serveArgs has requests wait for the first lease: on a busy machine it may
// take longer than anybody would want it to.
func (s *site) serveArgs(more ...string) []string {
	return append([]string{
		"serve", "--config", "none", "--socket", s.socket, "--state-dir", s.state, "--startup-wait", "30s",
	}, more...)
}

// start runs the daemon, and returns when it answers.
func (s *site) start(args ...string) *instance {
	s.t.Helper()
	d := s.launch(args...)
	d.awaitReady()
	return d
}

// launch runs the daemon.
func (s *site) launch(args ...string) *instance {
	s.t.Helper()
	return s.launchCommand(s.command(s.serveArgs(args...)...))
}

func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.Command(executable, args...)
	cmd.Env = s.environment()
	return cmd
}

func (s *site) launchCommand(cmd *exec.Cmd) *instance {
	s.t.Helper()
	d := &instance{t: s.t, site: s, cmd: cmd, log: &logBuffer{}, ended: make(chan struct{})}
	if cmd.Stderr == nil {
		cmd.Stderr = d.log
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = dieWithParent(nil)
	}
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		d.err = cmd.Wait()
		close(d.ended)
	}()
	s.t.Cleanup(func() {
		d.kill()
		d.examine()
	})
	return d
}

// instance is a daemon that was started.
type instance struct {
	t     *testing.T
	site  *site
	cmd   *exec.Cmd
	log   *logBuffer
	ended chan struct{} // closed once the process has been waited for
	err   error         // of Wait; read after ended
}

func (d *instance) pid() int { return d.cmd.Process.Pid }

// awaitReady returns when the daemon answers on its socket.
func (d *instance) awaitReady() {
	d.t.Helper()
	eventually(d.t, "the daemon answers", func() bool {
		select {
		case <-d.ended:
			d.t.Fatalf("the daemon ended: %v\n%s", d.err, d.log)
		default:
		}
		c, err := dialSocket(d.site.socket)
		if err != nil {
			return false
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(d.t.Context(), patience)
		defer cancel()
		var st daemon.Status
		return c.Call(ctx, "Status", &st) == nil && st.PID == d.pid()
	})
}

// awaitListening returns when the daemon has its socket, to whomever it answers.
func (d *instance) awaitListening() {
	d.t.Helper()
	eventually(d.t, "the daemon listens", func() bool {
		select {
		case <-d.ended:
			d.t.Fatalf("the daemon ended: %v\n%s", d.err, d.log)
		default:
		}
		conn, err := net.Dial("unix", d.site.socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// kill ends the process as a crash would.
func (d *instance) kill() {
	_ = d.cmd.Process.Kill()
	<-d.ended
}

// terminate asks the process to end and waits until it has.
func (d *instance) terminate() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Fatal(err)
	}
	d.awaitEnd()
}

func (d *instance) awaitEnd() {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(patience):
		d.t.Fatalf("process %d does not end\n%s", d.pid(), d.log)
	}
}

// failsToStart waits for the end of a daemon that must not come up, and
// returns the one line that it says on stderr.
func (d *instance) failsToStart(code int) string {
	d.t.Helper()
	d.awaitEnd()
	if got := d.cmd.ProcessState.ExitCode(); got != code {
		d.t.Errorf("exit code %d, want %d\n%s", got, code, d.log)
	}
	var plain []string
	for line := range strings.Lines(d.log.String()) {
		if !strings.HasPrefix(line, "{") {
			plain = append(plain, line)
		}
	}
	if len(plain) != 1 || !strings.HasPrefix(plain[0], "kazahanad: error: ") {
		d.t.Fatalf("stderr holds %q, want one line that begins with kazahanad: error:", plain)
	}
	return plain[0]
}

// examine looks at the log of a process that has ended for what must never be
// in one.
func (d *instance) examine() {
	text := d.log.String()
	for _, bad := range []string{"DATA RACE", "panic:", "fatal error:", "for a reason that has no code"} {
		if strings.Contains(text, bad) {
			d.t.Errorf("the log of process %d holds %q:\n%s", d.pid(), bad, text)
			return
		}
	}
	if d.t.Failed() {
		const most = 5000
		d.t.Logf("end of the log of process %d:\n%s", d.pid(), text[max(0, len(text)-most):])
	}
}

// logBuffer collects what a process writes while others read it.
type logBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// lines are the log's events, each a JSON object.
func (b *logBuffer) lines(t *testing.T) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(b.String()) {
		event := map[string]any{}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("a log line is no JSON: %q: %v", line, err)
		}
		all = append(all, event)
	}
	return all
}

// outcome is what became of a command.
type outcome struct {
	code           int
	stdout, stderr string
}

// kazahanad runs a subcommand against the site's socket and state directory.
func (s *site) kazahanad(args ...string) outcome {
	s.t.Helper()
	cmd := s.command(args...)
	cmd.Env = s.environment("KAZAHANA_SOCKET="+s.socket, "KAZAHANA_STATE_DIR="+s.state)
	return runCommand(s.t, cmd)
}

func runCommand(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = dieWithParent(nil)
	}
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	overdue := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer overdue.Stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if strings.Contains(err.String(), "DATA RACE") {
		t.Errorf("%v: %s", cmd.Args, err.String())
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), err.String()}
}

// ok is the standard output of a command that must succeed, silently.
func (o outcome) ok(t *testing.T) string {
	t.Helper()
	if o.code != exitOK || o.stderr != "" {
		t.Fatalf("exit code %d, stdout %q, stderr %q; want success", o.code, o.stdout, o.stderr)
	}
	return o.stdout
}

// fails checks that a command failed with one line that has all the words.
func (o outcome) fails(t *testing.T, code int, words ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("exit code %d, want %d; stderr: %s", o.code, code, o.stderr)
	}
	if !strings.HasPrefix(o.stderr, "kazahanad: error: ") || strings.Count(o.stderr, "\n") != 1 || !strings.HasSuffix(o.stderr, "\n") {
		t.Errorf("stderr is %q, want one line that begins with kazahanad: error:", o.stderr)
	}
	for _, w := range words {
		if !strings.Contains(o.stderr, w) {
			t.Errorf("stderr is %q, want %q in it", o.stderr, w)
		}
	}
}

// dialSocket connects to a daemon.
func dialSocket(socket string) (*wire.Client, error) {
	conn, err := net.DialTimeout("unix", socket, patience)
	if err != nil {
		return nil, err
	}
	return wire.NewClient(conn), nil
}

// client is a connection for the time of a test.
type client struct {
	*wire.Client
	t *testing.T
}

func (s *site) dial() *client {
	s.t.Helper()
	c, err := dialSocket(s.socket)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return &client{c, s.t}
}

// try calls a method.
func (c *client) try(method string, target any, params ...any) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	return c.Call(ctx, method, target, params...)
}

// must calls a method that has to succeed.
func (c *client) must(method string, target any, params ...any) {
	c.t.Helper()
	if err := c.try(method, target, params...); err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
}

// id asks for one ID.
func (c *client) id(options ...map[string]any) snowflake.ID {
	c.t.Helper()
	var id uint64
	c.must("NextID", &id, asParams(options)...)
	return snowflake.ID(id)
}

// ids asks for a batch.
func (c *client) ids(n int, options ...map[string]any) []uint64 {
	c.t.Helper()
	var ids []uint64
	c.must("NextIDs", &ids, append([]any{n}, asParams(options)...)...)
	if len(ids) != n || !ascending(ids) {
		c.t.Fatalf("NextIDs(%d) gave %d IDs, ascending: %v", n, len(ids), ascending(ids))
	}
	return ids
}

// refused asks for an ID that must not be given, and returns the error.
func (c *client) refused(code wire.Code, options ...map[string]any) *wire.Error {
	c.t.Helper()
	var id uint64
	err := c.try("NextID", &id, asParams(options)...)
	var refusal *wire.Error
	if !errors.As(err, &refusal) || refusal.Code != code {
		c.t.Fatalf("NextID gave %d and the error %v, want %s", id, err, code)
	}
	return refusal
}

func asParams(options []map[string]any) (params []any) {
	for _, o := range options {
		params = append(params, o)
	}
	return params
}

func (c *client) status() daemon.Status {
	c.t.Helper()
	var st daemon.Status
	c.must("Status", &st)
	return st
}

// awaitMode waits until the daemon is in one of the modes.
func (c *client) awaitMode(modes ...string) daemon.Status {
	c.t.Helper()
	var st daemon.Status
	eventually(c.t, "mode "+strings.Join(modes, " or "), func() bool {
		st = c.status()
		return slices.Contains(modes, st.Mode)
	})
	return st
}

// lease is what the first service holds. The status shows it a moment after the
// first ID that is made from it.
func (c *client) lease() (l daemon.LeaseStatus) {
	c.t.Helper()
	eventually(c.t, "a lease is held", func() bool {
		leases := c.status().Services[0].Leases
		if len(leases) > 0 {
			l = leases[len(leases)-1]
		}
		return len(leases) > 0
	})
	return l
}

var fallbackModes = []string{"fallback_cached", "fallback_random"}

func ascending(ids []uint64) bool {
	for i := 1; i < len(ids); i++ {
		if ids[i] <= ids[i-1] {
			return false
		}
	}
	return true
}

// duplicates sorts the IDs and counts those that are there more than once.
func duplicates(ids []uint64) (n int, first uint64) {
	slices.Sort(ids)
	for i := 1; i < len(ids); i++ {
		if ids[i] == ids[i-1] {
			if n == 0 {
				first = ids[i]
			}
			n++
		}
	}
	return n, first
}

// isFallback reads the bit that tells the kinds apart, for IDs on the default
// timeline.
func isFallback(id uint64) bool { return snowflake.DefaultTimeline().IsFallback(snowflake.ID(id)) }

// unixMS is the time that an ID on the default timeline embeds.
func unixMS(id snowflake.ID) int64 { return snowflake.DefaultTimeline().UnixMS(id) }

// inspected is what the command line says of an ID.
func (s *site) inspected(id snowflake.ID) snowflake.Inspection {
	s.t.Helper()
	var in struct {
		snowflake.Inspection
		ID string `json:"id"`
	}
	decodeJSON(s.t, s.kazahanad("inspect", "--json", fmt.Sprint(int64(id))).ok(s.t), &in)
	if in.ID != fmt.Sprint(int64(id)) {
		s.t.Errorf("inspect of %d speaks of %s", id, in.ID)
	}
	return in.Inspection
}

func decodeJSON(t *testing.T, text string, target any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), target); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}
