package state

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// gateDir is a state directory on a disk that can be frozen: everything waits then.
type gateDir struct {
	Dir
	mu     sync.Mutex
	frozen chan struct{} // closed at the thaw; nil: it is not frozen
	writes atomic.Int64
}

func (d *gateDir) freeze() { d.mu.Lock(); defer d.mu.Unlock(); d.frozen = make(chan struct{}) }
func (d *gateDir) thaw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.frozen)
	d.frozen = nil
}

func (d *gateDir) wait() {
	d.mu.Lock()
	frozen := d.frozen
	d.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

func (d *gateDir) Replace(name string, content []byte) error {
	d.wait()
	d.writes.Add(1)
	return d.Dir.Replace(name, content)
}

func (d *gateDir) Current() error { d.wait(); return d.Dir.Current() }

// openGated opens the place.
func openGated(t *testing.T, p place) (*testState, *gateDir) {
	t.Helper()
	disk, err := openStateDir(p.dir, true, os.Geteuid())
	must.Succeed(t, err)
	live, err := openLiveDir(p.live, true, os.Geteuid())
	must.Succeed(t, err)
	s, gate := &testState{t: t}, &gateDir{Dir: disk}
	if s.State, err = OpenOn(t.Context(), gate, live, s.options(p)); err != nil {
		t.Fatal(err)
	}
	return s, gate
}

// run lets the state run until end is called.
func (s *testState) run() (end func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	}
}

func (s *testState) count(message string) int { return s.logs.FilterMessageSnippet(message).Len() }

// sleep lets time pass in a bubble.
func sleep(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestRunWritesOnlyChanges(t *testing.T) {
	p := inMemory(t)
	synctest.Test(t, func(t *testing.T) {
		s, gate := openGated(t, p)
		sv := s.service("default")
		end := s.run()
		before := gate.writes.Load()
		wrote := func() (n int64) { n = gate.writes.Load() - before; before += n; return n }
		sleep(10*syncInterval + time.Millisecond)
		if n := wrote(); n != 1 { // the service is new
			t.Errorf("%d writes without a change", n)
		}
		for range 5 {
			sv.RaiseMark(sv.Mark() + 1)
			sleep(3 * syncInterval)
		}
		if n := wrote(); n != 5 {
			t.Errorf("5 changes led to %d writes", n)
		}
		mustSave(t, sv, savedWith(testLease(1, 1)))
		sleep(3 * syncInterval)
		if n := wrote(); n != 1 {
			t.Errorf("a new timeline led to %d writes", n)
		}
		mustSave(t, sv, savedWith(testLease(2, 2)))
		sleep(3 * syncInterval)
		if n := wrote(); n != 0 {
			t.Errorf("a lease led to %d writes to the disk", n)
		}
		end()
		mustClose(t, s)
	})
}

// Nothing that a request, a keeper or the watchdog calls waits for the disk, however
// long that is frozen.
func TestNothingWaitsForTheDisk(t *testing.T) {
	p := inMemory(t)
	synctest.Test(t, func(t *testing.T) {
		s, gate := openGated(t, p)
		sv := s.service("default")
		end := s.run()
		sleep(3 * syncInterval)
		gate.freeze()
		sv.RaiseMark(1)
		sleep(2 * syncInterval) // Run's write waits from now on
		began := time.Now()
		for i := range int64(100) {
			sv.RaiseMark(10 + i)
			mustSave(t, sv, savedWith(testLease(1, i)))
			sv.Load()
			s.service("default")
			if h := s.Health(); h.Stalled == 0 || h.LiveErr != nil {
				t.Errorf("Health: %+v", h)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("they waited for %v", took)
		}

		// The log says so, once a minute. Meanwhile a lost folder is noticed by a save.
		sleep(3*time.Minute + 10*time.Second)
		if n := s.count("cannot be brought to the disk"); n != 4 || s.failed != 4 {
			t.Errorf("%d lines in three minutes, %d failures: %v", n, s.failed, s.logs.All())
		}
		must.Succeed(t, os.RemoveAll(s.Health().Live))
		if err := sv.Save(savedWith()); err == nil || s.count("the live state cannot be written") != 1 {
			t.Errorf("%v: %v", err, s.logs.All())
		}
		gate.thaw()
		sleep(2 * syncInterval)
		if n := s.count("the state directory is up to date again"); n != 1 {
			t.Errorf("%d lines about the thaw", n)
		}
		if h := s.Health(); h.Stalled != 0 || h.Err != nil {
			t.Errorf("Health: %+v", h)
		}
		end()
		mustClose(t, s)
	})
}

// held reports whether a process has locked the directory.
func held(t *testing.T, path string) bool {
	t.Helper()
	d, err := openDir(path, false, "")
	must.Succeed(t, err)
	defer d.Close()
	holder, err := d.Holder()
	must.Succeed(t, err)
	return holder != nil
}

// A stop on a frozen disk waits for a second, and then leaves the directory locked
// until the write under way has ended.
func TestCloseOnAFrozenDisk(t *testing.T) {
	for _, running := range []bool{false, true} {
		p := inMemory(t)
		synctest.Test(t, func(t *testing.T) {
			s, gate := openGated(t, p)
			sv, folder := s.service("default"), s.Health().Live
			gate.freeze()
			mustSave(t, sv, savedWith(testLease(1, 1)))
			sv.RaiseMark(7)
			if running { // a write of Run's is under way
				end := s.run()
				time.Sleep(3 * syncInterval)
				end()
			}
			began := time.Now()
			err := s.Close()
			if took := time.Since(began); took != closePatience || err != nil || s.count("the stop does not wait for the floor") != 1 {
				t.Errorf("after %v: %v", took, err)
			}
			if !held(t, p.dir) || held(t, folder) {
				t.Errorf("locked: the directory %v, the folder %v", held(t, p.dir), held(t, folder))
			}
			gate.thaw()
			synctest.Wait()
			if held(t, p.dir) {
				t.Error("the directory is locked for ever")
			}
			s, _ = openGated(t, p)
			if sv := s.service("default"); sv.Mark() != 7 || len(sv.Load().Held) != 1 {
				t.Errorf("afterwards: mark %d, %+v", sv.Mark(), sv.Load())
			}
			mustClose(t, s)
		})
	}
}

// stuck reports whether a thread of the process waits for a disk.
func stuck(t *testing.T, pid int) bool {
	for _, path := range glob(t, fmt.Sprintf("/proc/%d/task", pid), "*/stat") {
		stat, _ := os.ReadFile(path)
		if _, after, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(after, "D") {
			return true
		}
	}
	return false
}

// lastReported is the last whole value that a child reported; 0 if none.
func lastReported(t *testing.T, reported []byte) int64 {
	t.Helper()
	reported = reported[:len(reported)/8*8]
	if len(reported) == 0 {
		return 0
	}
	last := int64(binary.NativeEndian.Uint64(reported[len(reported)-8:]))
	if first := int64(binary.NativeEndian.Uint64(reported)); last-first != int64(len(reported)/8-1) {
		t.Fatalf("the child reported %d to %d in %d values", first, last, len(reported)/8)
	}
	return last
}

// The real thing: a daemon on a frozen disk goes on, is killed and cannot end. The next one is
// refused while it hangs, and then has everything.
func TestKillOnAFrozenDisk(t *testing.T) {
	ring.All(t)
	disk := disktest.Ext4(t)
	p := place{filepath.Join(disk.Dir(), "state"), filepath.Join(disktest.Memory(t), "live")}
	c := startChild(t, "busy", p, nil)
	values := func(n int) []byte {
		t.Helper()
		got := make([]byte, 8*n)
		if _, err := io.ReadFull(c.stdout, got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	values(10)
	disk.Freeze()
	await.Eventually(t, "a write hangs", func() bool { values(1); return stuck(t, c.Process.Pid) })
	last := lastReported(t, values(10_000))
	must.Succeed(t, c.Process.Kill())
	if _, err := p.open(); !errors.As(err, new(*LockedError)) {
		t.Errorf("Open: %v", err)
	}
	disk.Thaw()
	var s *testState
	await.Eventually(t, "it has ended", func() (ended bool) {
		var err error
		s, err = tryOpen(t, p)
		return err == nil
	})
	sv := s.service("default")
	if got := sv.Load().Held; sv.Mark() < last || len(got) != 1 || got[0].Created < last {
		t.Errorf("mark %d, want %d; held %v", sv.Mark(), last, got)
	}

}
