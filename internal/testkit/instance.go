package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// Instance is a daemon that was started.
type Instance struct {
	T     *testing.T
	Site  *Site
	Cmd   *exec.Cmd
	Log   *Log
	Ended chan struct{} // closed once the process has been waited for
	Err   error         // of Wait; read after ended
}

func (d *Instance) PID() int { return d.Cmd.Process.Pid }

// eventually returns when ok reports true, which the process must live to see.
func (d *Instance) eventually(what string, ok func() bool) {
	d.T.Helper()
	await.Eventually(d.T, what, func() bool {
		select {
		case <-d.Ended:
			d.T.Fatalf("the process ended before this: %s: %v\n%s", what, d.Err, d.Log)
		default:
		}
		return ok()
	})
}

// AwaitReady returns when the daemon answers on its socket.
func (d *Instance) AwaitReady() {
	d.T.Helper()
	d.eventually("the daemon answers", func() bool {
		c, err := DialSocket(d.Site.Socket)
		if err != nil {
			return false
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(d.T.Context(), await.Patience)
		defer cancel()
		var st daemon.Status
		return c.Call(ctx, "Status", &st) == nil && st.PID == d.PID()
	})
}

// AwaitListening returns when the daemon has its socket, to whomever it answers.
func (d *Instance) AwaitListening() {
	d.T.Helper()
	d.eventually("the daemon listens", func() bool {
		conn, err := net.Dial("unix", d.Site.Socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// Kill ends the process as a crash would.
func (d *Instance) Kill() {
	_ = d.Cmd.Process.Kill()
	<-d.Ended
}

// Terminate asks the process to end and waits until it has.
func (d *Instance) Terminate() {
	d.T.Helper()
	d.Signal(syscall.SIGTERM)
	d.AwaitEnd()
}

// Signal sends a signal to the process, which must be there.
func (d *Instance) Signal(sig syscall.Signal) {
	d.T.Helper()
	if err := d.Cmd.Process.Signal(sig); err != nil {
		d.T.Fatal(err)
	}
}

// Freeze stops the process, and returns when it has stopped. SIGCONT ends that.
func (d *Instance) Freeze() {
	d.T.Helper()
	d.Signal(syscall.SIGSTOP)
	await.Stopped(d.T, d.PID())
}

func (d *Instance) AwaitEnd() {
	d.T.Helper()
	select {
	case <-d.Ended:
	case <-time.After(await.Patience):
		d.T.Fatalf("process %d does not end\n%s", d.PID(), d.Log)
	}
}

// FailsToStart waits for the end of a daemon that must not come up, and
// returns the error that its last line tells.
func (d *Instance) FailsToStart(code int) string {
	d.T.Helper()
	d.AwaitEnd()
	if got := d.Cmd.ProcessState.ExitCode(); got != code {
		d.T.Errorf("exit code %d, want %d\n%s", got, code, d.Log)
	}
	lines := slices.Collect(strings.Lines(d.Log.String()))
	if len(lines) == 0 {
		d.T.Fatal("stderr is empty")
	}
	said, ok := Fatal(lines[len(lines)-1])
	if !ok {
		d.T.Fatalf("stderr ends with %q, which tells no error", lines[len(lines)-1])
	}
	return said
}

// Fatal is the error that a line tells with which a process ends: a daemon's is JSON, as its log.
func Fatal(line string) (said string, ok bool) {
	if said, ok := strings.CutPrefix(line, "kazahanad: error: "); ok {
		return strings.CutSuffix(said, "\n")
	}
	var event struct{ Level, Msg, Error string }
	if json.Unmarshal([]byte(line), &event) != nil || event.Level != "error" || event.Msg != "ended by an error" {
		return "", false
	}
	return event.Error, strings.HasSuffix(line, "\n")
}

// examine looks at the log of a process that has ended for what must never be
// in one.
func (d *Instance) examine() {
	text := d.Log.String()
	for _, bad := range []string{"DATA RACE", "panic:", "fatal error:", "for a reason that has no code"} {
		if strings.Contains(text, bad) {
			d.T.Errorf("the log of process %d holds %q:\n%s", d.PID(), bad, text)
			return
		}
	}
	d.examineLines(text)
	if d.T.Failed() {
		const most = 5000
		d.T.Logf("end of the log of process %d:\n%s", d.PID(), text[max(0, len(text)-most):])
	}
}

// examineLines checks that each line of a daemon's log in JSON has what every line has.
// The last one may be cut short by a kill. Other programs log as they like.
func (d *Instance) examineLines(text string) {
	if !strings.HasPrefix(filepath.Base(d.Cmd.Path), "kazahanad") {
		return
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, `{"level":`) || !strings.HasSuffix(line, "\n") {
			continue
		}
		var has struct{ Level, TS, Msg, Component string }
		if err := json.Unmarshal([]byte(line), &has); err != nil || has.Level == "" || has.TS == "" || has.Msg == "" || has.Component == "" {
			d.T.Errorf("a line of the log lacks its level, time, event or component (%v): %s", err, line)
		}
	}
}

// Log collects what a process writes while others read it.
type Log struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *Log) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *Log) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// Lines are the log's events, each a JSON object.
func (b *Log) Lines(t *testing.T) (all []map[string]any) {
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

// Says returns when the process has written the words to its log.
func (d *Instance) Says(words string) {
	d.T.Helper()
	d.eventually("it says "+words, func() bool { return strings.Contains(d.Log.String(), words) })
}

func (d *Instance) Code() int {
	d.T.Helper()
	d.AwaitEnd()
	return d.Cmd.ProcessState.ExitCode()
}

// AwaitLog returns when the log has the text.
func (d *Instance) AwaitLog(text string) {
	d.T.Helper()
	await.Eventually(d.T, "the log says "+text, func() bool { return strings.Contains(d.Log.String(), text) })
}
