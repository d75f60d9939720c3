package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"golang.org/x/sys/unix"
)

// fullPipe is a pipe that takes no further byte until it is read.
func fullPipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	must.Succeed(t, err)
	t.Cleanup(func() { _, _ = reader.Close(), writer.Close() })
	fd := int(writer.Fd()) // blocking from here on
	must.Succeed(t, unix.SetNonblock(fd, true))
	for _, chunk := range [][]byte{make([]byte, 4096), {'\n'}} {
		for err = nil; err == nil; {
			_, err = unix.Write(fd, chunk)
		}
		if err != unix.EAGAIN {
			t.Fatal(err)
		}
	}
	must.Succeed(t, unix.SetNonblock(fd, false))
	return reader, writer
}

// launchBlocked runs a command with a full stderr.
func (s *site) launchBlocked(args ...string) (d *testkit.Instance, reader *os.File) {
	s.T.Helper()
	reader, writer := fullPipe(s.T)
	cmd := s.Command(args...)
	cmd.Stderr = writer
	d = s.LaunchCommand(cmd)
	_ = writer.Close()
	return d, reader
}

var droppedSample = regexp.MustCompile(`(?m)^kazahana_log_dropped_total (\d+)$`)

// droppedLines is what the metrics tell of the log.
func droppedLines(t *testing.T, metrics string) int {
	t.Helper()
	m := droppedSample.FindStringSubmatch(metrics)
	if m == nil {
		t.Fatalf("no kazahana_log_dropped_total in the metrics:\n%s", metrics)
	}
	n, err := strconv.Atoi(m[1])
	must.Succeed(t, err)
	return n
}

// A daemon with a stderr that takes nothing works on, and says later which lines are missing.
func TestBlockedLog(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	args := s.ServeArgs(s.Brief("--log-level", "debug", "--log-format", "json", "--admin-listen", "unix:"+s.Path("admin.sock"))...)
	d, reader := s.launchBlocked(args...)
	d.AwaitReady()
	c := s.Dial()
	var pong string
	c.Must("Ping", &pong)
	before := c.Lease()
	dropped := func() int {
		_, metrics := s.Get("/metrics")
		return droppedLines(t, metrics)
	}
	const most = 100_000 // lines, and several of them for each round: far more than wait
	for n := 0; dropped() == 0; n += 200 {
		if n > most {
			t.Fatal("no line is dropped")
		}
		for range 200 {
			var lock any
			c.Must("Lock.Acquire", &lock, "k")
			c.Must("Lock.Release", &lock, "k")
		}
		c.ID()
	}
	if code, body := s.Get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz answers %d %q", code, body)
	}
	await.Eventually(t, "the lease is renewed", func() bool { return c.Lease().CreatedMS > before.CreatedMS })
	c.RegularID()
	lost := dropped()
	collect(reader, d.Log)
	d.AwaitLog("log lines were dropped")
	d.Terminate()
	d.AwaitLog("leases are given back")
	var gap struct {
		Level   string
		Dropped int
		Total   int `json:"dropped_since_start"`
	}
	for line := range strings.Lines(d.Log.String()) {
		if strings.Contains(line, "log lines were dropped") {
			if err := json.Unmarshal([]byte(line), &gap); err != nil {
				t.Errorf("%v: %s", err, line)
			}
			break
		}
	}
	if gap.Level != "error" || gap.Dropped < lost || gap.Total != gap.Dropped {
		t.Errorf("%d lines or more were dropped, and the log tells of %+v", lost, gap)
	}
}

// A daemon ends in time while its stderr takes nothing: told to, or because it
// cannot start.
func TestBlockedLogAtTheEnd(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d, _ := s.launchBlocked(s.ServeArgs()...)
	d.AwaitReady()
	d.Terminate()
	if d.Err != nil {
		t.Errorf("it ended with %v", d.Err)
	}
	for _, args := range [][]string{
		s.ServeArgs("--max-backward", "frob"), s.ServeArgs("--provider", "frob:"),
		{"lease-server", "--config", "none", "--provider", "frob:"},
		{"run", "--config", "none", "--provider", "frob:", "--", "true"},
	} {
		d, _ := s.launchBlocked(args...)
		if code := d.Code(); code != exitUsage {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
	// Neither the program nor its lease or lock waits for what run and lock say.
	d, _ = s.launchBlocked(s.runArgs("term=10m", "exit 7")...)
	if code := d.Code(); code != 7 {
		t.Errorf("run: exit code %d", code)
	}
	s.Start()
	d, _ = s.launchBlocked(s.lockArgs("k", "exit 8")...)
	if code := d.Code(); code != 8 {
		t.Errorf("lock: exit code %d", code)
	}
}

// The reason of a failed start is the last line of a daemon's log, behind the earlier lines.
func TestStartErrorIsFlushed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	d := s.Launch("--log-level", "debug")
	if said := d.FailsToStart(exitFailure); !strings.Contains(said, "in use by process") {
		t.Errorf("the log ends otherwise:\n%s", d.Log)
	}
}

// Without a reader of the log, the daemon serves on.
func TestLogReaderGone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reader, writer, err := os.Pipe()
	must.Succeed(t, err)
	cmd := s.Command(s.ServeArgs("--admin-listen", "unix:"+s.Path("admin.sock"))...)
	cmd.Stderr = writer
	d := s.LaunchCommand(cmd)
	_ = writer.Close()
	d.AwaitReady()
	_ = reader.Close()
	_ = d.Cmd.Process.Signal(syscall.SIGHUP) // a line to log
	await.Eventually(t, "the line is lost", func() bool {
		_, metrics := s.Get("/metrics")
		return droppedLines(t, metrics) > 0
	})
	s.Dial().ID()
	d.Terminate()
	if d.Err != nil {
		t.Errorf("it ended with %v", d.Err)
	}
}

// The journal learns the level of each line.
func TestJournalPriorities(t *testing.T) {
	t.Parallel()
	level := regexp.MustCompile(`^<([3-7])>(?:\{"level":"([a-z]+)"|\S+\t([A-Z]+)\t)`)
	priorities := map[string]string{"error": "3", "warn": "4", "info": "6", "debug": "7"}
	for _, format := range []string{"json", "console"} {
		s := newSite(t)
		d, journal := s.launchJournaled(true, s.ServeArgs("--log-level", "debug", "--log-format", format)...)
		d.AwaitReady()
		c := s.Dial()
		var answer any
		c.Must("Sequence.Next", &answer, "k") // a line of level debug
		d.Terminate()
		seen := map[string]bool{}
		for line := range strings.Lines(journal()) {
			m := level.FindStringSubmatch(line)
			if m == nil {
				t.Errorf("no priority and level: %s", line)
				continue
			}
			name := strings.ToLower(m[2] + m[3])
			seen[name] = true
			if priorities[name] != m[1] {
				t.Errorf("priority %s: %s", m[1], line)
			}
		}
		if !seen["debug"] || !seen["info"] || !seen["warn"] {
			t.Errorf("levels %v are logged:\n%s", seen, d.Log)
		}
		_, journal = s.launchJournaled(true, s.ServeArgs("--provider", "frob:", "--log-format", format)...)
		text := journal()
		line, isError := strings.CutPrefix(text, "<3>")
		said, tells := testkit.Fatal(line)
		if json := strings.HasPrefix(line, "{"); !isError || !tells || !strings.Contains(said, "frob") || json != (format == "json") {
			t.Errorf("with log_format %s the start failed with %q", format, text)
		}
	}
	// stderr was redirected, and the variable is another's.
	s := newSite(t)
	d, journal := s.launchJournaled(false, s.ServeArgs()...)
	d.AwaitReady()
	d.Terminate()
	if text := journal(); strings.Contains(text, "\n<") || !strings.HasPrefix(text, "{") {
		t.Errorf("the log is\n%s", text)
	}
}

// launchJournaled runs a command under a service manager that has connected its
// stderr to the journal, or only says so. journal waits for the end and returns the
// logged lines.
func (s *site) launchJournaled(connected bool, args ...string) (d *testkit.Instance, journal func() string) {
	s.T.Helper()
	reader, writer, err := os.Pipe()
	must.Succeed(s.T, err)
	var st unix.Stat_t
	must.Succeed(s.T, unix.Fstat(int(writer.Fd()), &st))
	inode := st.Ino
	if !connected {
		inode++
	}
	cmd := exec.Command(testkit.Executable(), args...)
	cmd.Env = s.Environment(fmt.Sprintf("JOURNAL_STREAM=%d:%d", st.Dev, inode))
	cmd.Stderr = writer
	d = s.LaunchCommand(cmd)
	_ = writer.Close()
	copied := collect(reader, d.Log)
	return d, func() string {
		s.T.Helper()
		d.AwaitEnd()
		<-copied
		return d.Log.String()
	}
}
