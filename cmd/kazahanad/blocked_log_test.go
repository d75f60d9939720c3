package main

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
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
