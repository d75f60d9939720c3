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

	"golang.org/x/sys/unix"
)

// fullPipe is a pipe that takes no further byte until somebody reads it.
func fullPipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = reader.Close(), writer.Close() })
	fd := int(writer.Fd()) // blocking from here on
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for _, chunk := range [][]byte{make([]byte, 4096), {'\n'}} {
		for err = nil; err == nil; {
			_, err = unix.Write(fd, chunk)
		}
		if err != unix.EAGAIN {
			t.Fatal(err)
		}
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	return reader, writer
}

// launchBlocked runs a command whose stderr is full.
func (s *site) launchBlocked(args ...string) (d *instance, reader *os.File) {
	s.t.Helper()
	reader, writer := fullPipe(s.t)
	cmd := s.command(args...)
	cmd.Stderr = writer
	d = s.launchCommand(cmd)
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
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A daemon whose stderr takes nothing works on, and says later what is missing.
func TestBlockedLog(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	args := s.serveArgs(s.brief("--log-level", "debug", "--log-format", "json", "--admin-listen", "unix:"+s.path("admin.sock"))...)
	d, reader := s.launchBlocked(args...)
	d.awaitReady()
	c := s.dial()
	var pong string
	c.must("Ping", &pong)
	before := c.lease()
	dropped := func() int {
		_, metrics := s.get("/metrics")
		return droppedLines(t, metrics)
	}
	eventually(t, "lines are dropped", func() bool {
		for range 200 {
			var lock any
			c.must("Lock.Acquire", &lock, "k")
			c.must("Lock.Release", &lock, "k")
		}
		c.id()
		return dropped() > 0
	})
	if code, body := s.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz answers %d %q", code, body)
	}
	eventually(t, "the lease is renewed", func() bool { return c.lease().CreatedMS > before.CreatedMS })
	if in := s.inspected(c.id()); in.Kind != "regular" {
		t.Errorf("an ID is %+v", in)
	}
	lost := dropped()
	go func() { _, _ = reader.WriteTo(d.log) }()
	eventually(t, "the log tells of the gap", func() bool { return strings.Contains(d.log.String(), "log lines were dropped") })
	d.terminate()
	eventually(t, "the last line is read", func() bool { return strings.Contains(d.log.String(), "leases are given back") })
	var gap struct {
		Level   string
		Dropped int
		Total   int `json:"dropped_since_start"`
	}
	for line := range strings.Lines(d.log.String()) {
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
	d, _ := s.launchBlocked(s.serveArgs()...)
	d.awaitReady()
	d.terminate()
	if d.err != nil {
		t.Errorf("it ended with %v", d.err)
	}
	for _, args := range [][]string{
		s.serveArgs("--max-backward", "frob"), s.serveArgs("--provider", "frob:"),
		{"lease-server", "--config", "none", "--provider", "frob:"},
		{"run", "--config", "none", "--provider", "frob:", "--", "true"},
	} {
		d, _ := s.launchBlocked(args...)
		if code := d.code(); code != exitUsage {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}

// What a daemon cannot start for is the last line of its log, behind what was
// logged before.
func TestStartErrorIsFlushed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	d := s.launch("--log-level", "debug")
	if said := d.failsToStart(exitFailure); !strings.HasSuffix(d.log.String(), said) {
		t.Errorf("the log ends otherwise:\n%s", d.log)
	}
}

func TestBlockedLogOfLeaseServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	path := s.path("lease.sock")
	l, reader := s.launchBlocked("lease-server", "--config", "none", "--listen", "unix:"+path, "--drain-delay", "0",
		"--provider", "memory:", "--log-level", "debug", "--log-format", "json")
	eventually(t, "it answers", func() bool {
		code, _, err := getUnix(path, "/readyz")
		return err == nil && code == http.StatusOK
	})
	eventually(t, "lines are dropped", func() bool {
		for range 500 {
			if code, _, err := getUnix(path, "/stats"); err != nil || code != http.StatusOK {
				t.Fatalf("/stats answers %d, %v", code, err)
			}
		}
		_, metrics, err := getUnix(path, "/metrics")
		return err == nil && droppedLines(t, metrics) > 0
	})
	go func() { _, _ = reader.WriteTo(l.log) }()
	eventually(t, "the log tells of the gap", func() bool { return strings.Contains(l.log.String(), "log lines were dropped") })
	l.terminate()
	if l.err != nil {
		t.Errorf("it ended with %v", l.err)
	}
}

// Neither the program nor its lease waits for what run and lock say.
func TestBlockedLogOfRunAndLock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stop := s.path("stop")
	until := fmt.Sprintf("until [ -e %s ]; do sleep 0.05; done; exit 7", stop)
	d, _ := s.launchBlocked(s.runArgs("term=3s", until)...)
	eventually(t, "the lease is extended twice", func() bool {
		o := s.kazahanad("leases", "--config", "none", "--json", "--provider", "sqlite:"+s.leases())
		if o.code != exitOK { // the file is not there yet
			return false
		}
		var r leasesReport
		decodeJSON(t, o.stdout, &r)
		return *r.ExtendTTLSuccess >= 2
	})
	writeFile(t, stop, "")
	if code := d.code(); code != 7 {
		t.Errorf("run: exit code %d", code)
	}
	s.start()
	d, _ = s.launchBlocked("lock", "--socket", s.socket, "k", "--", "sh", "-c", "exit 8")
	if code := d.code(); code != 8 {
		t.Errorf("lock: exit code %d", code)
	}
}

// Nobody reads the log any more: the daemon serves on.
func TestLogReaderGone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := s.command(s.serveArgs("--admin-listen", "unix:"+s.path("admin.sock"))...)
	cmd.Stderr = writer
	d := s.launchCommand(cmd)
	_ = writer.Close()
	d.awaitReady()
	_ = reader.Close()
	_ = d.cmd.Process.Signal(syscall.SIGHUP) // a line to log
	eventually(t, "the line is lost", func() bool {
		_, metrics := s.get("/metrics")
		return droppedLines(t, metrics) > 0
	})
	s.dial().id()
	d.terminate()
	if d.err != nil {
		t.Errorf("it ended with %v", d.err)
	}
}

// The journal learns the level of each line.
func TestJournalPriorities(t *testing.T) {
	t.Parallel()
	level := regexp.MustCompile(`^<([3-7])>(?:\{"level":"([a-z]+)"|\S+\t([A-Z]+)\t)`)
	priorities := map[string]string{"error": "3", "warn": "4", "info": "6", "debug": "7"}
	for _, format := range []string{"json", "console"} {
		s := newSite(t)
		d, journal := s.launchJournaled(true, s.serveArgs("--log-level", "debug", "--log-format", format)...)
		d.awaitReady()
		c := s.dial()
		var answer any
		c.must("Sequence.Next", &answer, "k") // a line of level debug
		d.terminate()
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
			t.Errorf("levels %v are logged:\n%s", seen, d.log)
		}
		_, journal = s.launchJournaled(true, s.serveArgs("--provider", "frob:", "--log-format", format)...)
		if text := journal(); !strings.HasPrefix(text, "<3>kazahanad: error: ") {
			t.Errorf("the start failed with %q", text)
		}
	}
	// stderr was redirected, and the variable is another's.
	s := newSite(t)
	d, journal := s.launchJournaled(false, s.serveArgs()...)
	d.awaitReady()
	d.terminate()
	if text := journal(); strings.Contains(text, "\n<") || !strings.HasPrefix(text, "{") {
		t.Errorf("the log is\n%s", text)
	}
}

// launchJournaled runs a command under a service manager that has connected its
// stderr to the journal, or only says so. journal waits for the end and returns
// what was logged.
func (s *site) launchJournaled(connected bool, args ...string) (d *instance, journal func() string) {
	s.t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		s.t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(writer.Fd()), &st); err != nil {
		s.t.Fatal(err)
	}
	inode := st.Ino
	if !connected {
		inode++
	}
	cmd := exec.Command(executable, args...)
	cmd.Env = s.environment(fmt.Sprintf("JOURNAL_STREAM=%d:%d", st.Dev, inode))
	cmd.Stderr = writer
	d = s.launchCommand(cmd)
	_ = writer.Close()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = reader.WriteTo(d.log)
	}()
	return d, func() string {
		s.t.Helper()
		d.awaitEnd()
		<-copied
		return d.log.String()
	}
}
