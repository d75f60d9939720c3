package main

import (
	"context"
	"errors"
	"fmt"
	"github.com/kazahana/kazahana/internal/backend"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// granted is what the provider's file says of all slots.
func (s *site) granted() []provider.Record {
	s.T.Helper()
	p, err := backend.OpenLeaseFile(s.T.Context(), backend.LeaseFile{Path: s.Leases(), Services: provider.Services{Default: provider.DefaultTerms()}})
	must.Succeed(s.T, err)
	defer p.Close()
	records, err := p.List(s.T.Context(), "default")
	must.Succeed(s.T, err)
	return records
}

// remembered is what the state holds of the default service.
func (s *site) remembered() state.ServiceReport {
	s.T.Helper()
	report, err := state.Inspect(s.State, state.Options{})
	must.Succeed(s.T, err)
	i := slices.IndexFunc(report.Services, func(r state.ServiceReport) bool { return r.Name == "default" })
	if i < 0 {
		s.T.Fatalf("the state is %+v", report)
	}
	return report.Services[i]
}

// slowBatch asks for a batch that takes a while, and returns once the daemon
// works on it.
func (s *site) slowBatch(n int) (answer <-chan []uint64, failure <-chan error) {
	s.T.Helper()
	c, answers, failures := s.Dial(), make(chan []uint64, 1), make(chan error, 1)
	ask := func() {
		var ids []uint64
		if err := c.Try("NextIDs", &ids, n); err != nil {
			failures <- err
			return
		}
		answers <- ids
	}
	go ask()
	other := s.Dial()
	await.Eventually(s.T, "the batch is under way", func() bool {
		select {
		case <-answers: // before anybody looked
			go ask()
		default:
		}
		return other.Status().InFlight == 1
	})
	return answers, failures
}

// A request at a door gets its ID during a stop too, with the lease that it waits for.
func TestStopWaitsForTheDoors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.StartLeaseServer(testkit.FreeAddress(t))
	server.Freeze()
	door := s.Path("h.sock")
	d := s.Launch("--provider", server.URL(), "--store", "none", "--http-listen", "unix:"+door, "--provider-timeout", "10m", "--startup-wait", "10m", "--drain-timeout", "10m")
	d.AwaitLog("kazahanad is ready")
	status := make(chan int, 1)
	go func() {
		h := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", door)
		}}}
		defer h.CloseIdleConnections()
		answer, err := h.Get("http://door/id?timeout_ms=60000")
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		_ = answer.Body.Close()
		status <- answer.StatusCode
	}()
	c := s.Dial()
	await.Eventually(t, "the request waits", func() bool { return c.Status().InFlight == 1 })
	_ = c.Close()
	d.Signal(syscall.SIGTERM)
	d.AwaitLog("stopping: requests under way are answered first")
	time.Sleep(200 * time.Millisecond) // nothing else keeps the daemon
	server.Signal(syscall.SIGCONT)
	if code := <-status; code != 200 {
		t.Errorf("the request got %d\n%s", code, d.Log)
	}
	d.AwaitEnd()
}

// What a stop cannot close because the disk does not answer is no failure: the floor
// follows the mark at the next start, and the lease ends with its term.
func TestStopOnAFrozenDisk(t *testing.T) {
	t.Parallel()
	s, disk := newSite(t), disktest.Ext4(t)
	s.State = filepath.Join(disk.Dir(), "state")
	daemon := s.Start()
	server := s.StartLeaseServer(testkit.FreeAddress(t), "--provider", "sqlite:"+filepath.Join(disk.Dir(), "server.db"))
	if status, said := server.Answer("POST", "/lease", "", map[string]any{}); status != http.StatusOK {
		t.Fatalf("POST /lease: %d %s", status, said)
	}
	// So its file of sequences has a log, which the stop writes into it.
	if status, said := server.Answer("POST", "/v1/sequences/orders/next", "", map[string]any{"request_id": "1"}); status != http.StatusOK {
		t.Fatalf("POST /v1/sequences/orders/next: %d %s", status, said)
	}
	c := s.Dial()
	c.RegularID()
	disk.Freeze()
	last := c.ID()
	for _, d := range []*testkit.Instance{daemon, server.Instance} {
		d.Signal(syscall.SIGTERM)
	}
	daemon.AwaitLog("the stop does not wait for the floor")
	server.AwaitLog("the stop could not close everything")
	disk.Thaw() // before, the processes cannot end
	for _, d := range []*testkit.Instance{daemon, server.Instance} {
		if code := d.Code(); code != exitOK {
			t.Errorf("exit code %d\n%s", code, d.Log)
		}
	}
	s.Start()
	if next := s.Dial().ID(); next <= last {
		t.Errorf("%d came after %d", next, last)
	}
}

func TestGracefulStop(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		s := newSite(t)
		// With one machine ID there is, a start that gets it proves that it was
		// given back.
		args := []string{"--provider", "sqlite:" + s.Leases() + "?ids=5-5", "--max-throughput-per-ms", "32"}
		d := s.Start(args...)
		s.Dial().ID()
		if held := s.remembered().Saved.Held; len(held) != 1 || held[0].ID != 5 {
			t.Errorf("while it runs, the state holds %v", held)
		}
		answer, failure := s.slowBatch(20_000)
		must.Succeed(t, d.Cmd.Process.Signal(signal))
		var last uint64
		select {
		case ids := <-answer:
			if len(ids) != 20_000 || !testkit.Ascending(ids) {
				t.Errorf("the request under way got %d IDs", len(ids))
			}
			last = ids[len(ids)-1]
		case err := <-failure:
			t.Errorf("the request under way got %v", err)
		}
		d.AwaitEnd()
		if code := d.Cmd.ProcessState.ExitCode(); code != exitOK {
			t.Errorf("%v: exit code %d", signal, code)
		}
		if _, err := os.Lstat(s.Socket); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: the socket is still there: %v", signal, err)
		}
		if saved := s.remembered().Saved; len(saved.Held) != 0 || saved.Cached != nil {
			t.Errorf("%v: the state holds %+v", signal, saved)
		}
		records := s.granted()
		if len(records) != 1 || !records[0].Released || records[0].End > time.Now().UnixMilli() { // seed 000-11.2-1
			t.Errorf("%v: the provider says %+v", signal, records)
		}

		s.Start(args...)
		c := s.Dial()
		id := c.ID(map[string]any{"regular_only": true})
		if lease := c.Lease(); lease.MachineID != 5 || uint64(id) <= last {
			t.Errorf("%v: the next start got %+v, and made %d after %d", signal, lease, id, last)
		}
	}
}

// A stop may come at any moment of a start.
func TestStopDuringStart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for i := range 24 {
		d := s.Launch()
		// Its lock is the first thing that it takes; its further steps differ from one start to
		// the next.
		await.Eventually(t, "the start has begun", func() bool {
			holder, err := os.ReadFile(s.State + "/lock")
			return err == nil && strings.HasPrefix(string(holder), fmt.Sprint(d.PID(), " "))
		})
		testkit.Pause(t, time.Duration(i)*time.Millisecond)
		d.Terminate()
		if code := d.Cmd.ProcessState.ExitCode(); code != exitOK {
			t.Errorf("exit code %d\n%s", code, d.Log)
		}
		if _, err := os.Lstat(s.Socket); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket is still there: %v", err)
		}
		if strings.Contains(d.Log.String(), "kazahanad: error") {
			t.Errorf("a stop is no error:\n%s", d.Log)
		}
	}
	s.Start()
	if held := s.Dial().Lease(); !held.Usable {
		t.Errorf("after all that the lease is %+v", held)
	}
}

// A start that waits for a predecessor which still holds the live state is stopped on request
// like any other daemon.
func TestStopOfAStartThatWaits(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if s.Live == "none" {
		t.Skip("there is no file system in memory")
	}
	s.Start().Kill()
	folders, err := filepath.Glob(filepath.Join(s.Live, "*", "holder"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("the live directory has %v (%v)", folders, err)
	}
	held, err := os.Open(filepath.Dir(folders[0]))
	must.Succeed(t, err)
	defer held.Close()
	must.Succeed(t, syscall.Flock(int(held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	d := s.Launch()
	d.AwaitLog("a process that was killed and has not ended holds the live state")
	d.Signal(syscall.SIGTERM)
	if code := d.Code(); code != exitOK {
		t.Errorf("exit code %d\n%s", code, d.Log)
	}
}
