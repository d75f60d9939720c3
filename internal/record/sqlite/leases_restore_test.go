package sqlite_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// history is a lease file on a disk of its own, and every lease that was granted from it,
// remembered or not.
type history struct {
	*testing.T
	disk   *disktest.Disk
	live   string
	clock  atomic.Int64
	leases []lease.Lease
}

const historyFrom = 1_800_000_000_000

func newHistory(t *testing.T) *history {
	h := &history{T: t, disk: disktest.Ext4(t), live: disktest.Memory(t)}
	h.clock.Store(historyFrom)
	return h
}

func (h *history) path() string { return filepath.Join(h.disk.Dir(), "leases.db") }

func (h *history) config() backend.LeaseFile {
	return backend.LeaseFile{Path: h.path(), Services: defaultServices(), NowMS: h.clock.Load, LiveDir: h.live}
}

func (h *history) open() *leases {
	h.Helper()
	p, err := newLeases(h.Context(), h.config())
	must.Succeed(h, err)
	return p
}

func (h *history) close(p *leases) {
	h.Helper()
	if err := p.Close(); err != nil {
		h.Error(err)
	}
}

// acquire takes leases, of which none may overlap a live one.
func (h *history) acquire(p *leases, n int) (granted []lease.Lease, err error) {
	h.Helper()
	for range n {
		more, err := p.Acquire(h.Context(), provider.AcquireRequest{})
		if err != nil {
			return granted, err
		}
		granted = append(granted, more...)
	}
	h.granted(granted)
	return granted, nil
}

func (h *history) mustAcquire(p *leases, n int) []lease.Lease {
	h.Helper()
	granted, err := h.acquire(p, n)
	must.Succeed(h, err)
	return granted
}

// backup grants some leases and closes the file. Then it copies the file.
func (h *history) backup() (path string) {
	h.Helper()
	p := h.open()
	h.mustAcquire(p, 3)
	h.close(p)
	path = filepath.Join(h.disk.Dir(), "backup")
	disktest.Copy(h, h.path(), path)
	return path
}

func (h *history) granted(leases []lease.Lease) {
	h.Helper()
	for _, l := range leases {
		for _, other := range h.leases {
			if l.Slot().Overlaps(other.Slot()) && l.Created < other.ReservedUntil && other.Created < l.ReservedUntil {
				h.Errorf("%v was granted over %v", l, other)
			}
		}
		h.leases = append(h.leases, l)
	}
}

// fenced checks that nothing is granted until every lease has ended, that leases
// which were forgotten are not called lost meanwhile, that a restart changes
// nothing of that, and that grants begin again by themselves.
func (h *history) fenced(p *leases, forgotten []lease.Lease) {
	h.Helper()
	until := int64(0)
	for range 2 {
		if lost, err := provider.Verify(h.Context(), p, "", forgotten); err != nil || len(lost) > 0 {
			h.Errorf("Verify: %v, %v", lost, err)
		}
		_, err := h.acquire(p, 1)
		var fenced *provider.FencedError
		if !errors.As(err, &fenced) {
			h.Fatalf("the error is %v, want a FencedError", err)
		}
		h.Logf("%v", err)
		for _, l := range h.leases {
			if fenced.UntilMS < l.ReservedUntil {
				h.Errorf("fenced until %d, and %v ends at %d", fenced.UntilMS, l, l.ReservedUntil)
			}
		}
		if least := h.clock.Load() + p.services.LongestMS(); until == 0 && fenced.UntilMS < least {
			h.Errorf("fenced until %d, want at least %d", fenced.UntilMS, least)
		}
		if until != 0 && fenced.UntilMS != until {
			h.Errorf("fenced until %d after a restart, and %d before", fenced.UntilMS, until)
		}
		until = fenced.UntilMS
		if known := p.Fenced(); known == nil || known.UntilMS != until {
			h.Errorf("Fenced says %v", known)
		}
		if _, err := provider.Extend(h.Context(), p, "", forgotten[0]); !errors.As(err, &fenced) {
			h.Errorf("Extend: %v, want a FencedError", err)
		}
		h.close(p)
		h.clock.Add(1000)
		p = h.open()
	}
	h.clock.Store(until - 1)
	if _, err := h.acquire(p, 1); err == nil {
		h.Error("granted before the end of the fence")
	}
	h.clock.Store(until)
	h.mustAcquire(p, 1)
	if p.Fenced() != nil {
		h.Error("Fenced does not end")
	}
	h.close(p)
	h.close(h.open())
}

// While no process has the file open, it is removed, or put back in each of the ways.
func TestPutBackWhileStopped(t *testing.T) {
	ring.All(t)
	put := func(way disktest.Way, reboot bool) func(*testing.T) {
		return func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			backup := h.backup()
			p := h.open()
			h.clock.Add(1000)
			forgotten := h.mustAcquire(p, 3)
			h.close(p)
			if reboot {
				disktest.Reboot(t, h.live)
			}
			h.clock.Add(1000)
			if way.Name == "" {
				disktest.Run(t, "rm", h.path())
			} else {
				way.Put(t, backup, h.path(), false)
			}
			h.fenced(h.open(), forgotten)
		}
	}
	for _, way := range disktest.Ways {
		t.Run(way.Name, put(way, false))
		if !way.InPlace { // docs/uniqueness.md says that this cannot be seen
			t.Run(way.Name+", reboot", put(way, true))
		}
	}
	t.Run("removed", put(disktest.Way{}, false))
}

// enough is how many grants are forgotten.
const enough = 50

// A file is put back under a process that has it open. Where it is another file,
// that process does nothing more with it, and the next one fences it.
func TestPutBackWhileRunning(t *testing.T) {
	ring.All(t)
	for _, way := range disktest.Ways {
		for _, leaveLog := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, log left %v", way.Name, leaveLog), func(t *testing.T) {
				t.Parallel()
				h := newHistory(t)
				backup := h.backup()
				p := h.open()
				h.clock.Add(1000)
				forgotten := h.mustAcquire(p, enough)
				way.Put(t, backup, h.path(), leaveLog)
				_, err := h.acquire(p, 1)
				t.Logf("running: %v", err)
				var fenced *provider.FencedError
				if !errors.As(err, &fenced) {
					if err == nil {
						t.Fatal("the process goes on granting")
					}
					if !errors.Is(err, sqlitefile.ErrMoved) && !strings.Contains(err.Error(), "damaged") {
						t.Errorf("the error is %v", err)
					}
					_ = p.Close() // it may be damaged
					if p, err = newLeases(t.Context(), h.config()); err != nil {
						if !strings.Contains(err.Error(), "damaged") {
							t.Errorf("opened again: %v", err)
						}
						return
					}
					_ = p.Ready(t.Context()) // which sees the fence
				}
				if err == nil && p.Fenced() == nil {
					h.complete(p)
					return
				}
				h.fenced(p, forgotten[:3])
			})
		}
	}
}

// complete checks a file that is not fenced: nothing may be missing.
func (h *history) complete(p *leases) {
	h.Helper()
	if lost, err := provider.Verify(h.Context(), p, "", h.leases); err != nil || len(lost) > 0 {
		h.Errorf("Verify: %d lost, %v", len(lost), err)
	}
	h.mustAcquire(p, 3)
	h.close(p)
}

// A volume that moves to another host, and a reboot, need no operator: the file is still the same
// one.
func TestVolumeMovesToAnotherHost(t *testing.T) {
	ring.All(t)
	h := newHistory(t)
	p := h.open()
	leases := h.mustAcquire(p, enough)
	h.close(p)
	// Each host has a directory of this name, and sees no other host's.
	elsewhere := disktest.Memory(t)
	for range 3 { // and back, where a watermark remembers less
		h.disk.Remount()
		for _, move := range [][2]string{{h.live, h.live + ".here"}, {elsewhere, h.live}, {h.live + ".here", elsewhere}} {
			must.Succeed(t, os.Rename(move[0], move[1]))
		}
		p := h.open()
		if lost, err := provider.Verify(t.Context(), p, "", leases); err != nil || len(lost) > 0 {
			t.Errorf("Verify: %d lost, %v", len(lost), err)
		}
		h.clock.Add(1000)
		leases = append(leases, h.mustAcquire(p, 2)...)
		h.close(p)
	}
}

func asNobody(_ *testing.T, cmd *exec.Cmd, _ string) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// inContainer has the command see another, empty file system in memory in place of
// the live directory.
func inContainer(t *testing.T, cmd *exec.Cmd, live string) {
	t.Helper()
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip("containers need unshare")
	}
	if out, err := exec.Command(unshare, "-m", "true").CombinedOutput(); err != nil {
		t.Skipf("no mount namespace can be had: %v: %s", err, out)
	}
	cmd.Args = []string{"unshare", "-m", "sh", "-c", `mount -t tmpfs live "$1" && exec "$2"`, "sh", live, cmd.Path}
	cmd.Path = unshare
}

// Two containers, and two users, cannot see each other's live directory: while one
// has the file open, the other is refused by name. One after the other may use it.
func TestWhoCannotShareTheWatermark(t *testing.T) {
	ring.All(t)
	for name, apart := range map[string]func(*testing.T, *exec.Cmd, string){
		"containers": inContainer,
		"users":      asNobody,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			services := defaultServices()
			p := h.open()
			h.mustAcquire(p, 1)
			for _, err := range []error{os.Chmod(h.disk.Dir(), 0o777), os.Chmod(h.path(), 0o666)} {
				must.Succeed(t, err)
			}
			h.close(p)
			other := func(live string) (string, error) {
				cmd := child(t, "open", childArgs{Path: h.path(), Services: services, LiveDir: live})
				cmd.Path, cmd.Dir = executable(t), "/"
				apart(t, cmd, h.live)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			own := disktest.Memory(t)
			disktest.Run(t, "chown", "65534:65534", own)
			p = h.open()
			for _, live := range []string{"", own} {
				out, err := other(live)
				t.Logf("%q: %s", live, out)
				if err == nil || !strings.Contains(out, h.path()) || !strings.Contains(out, "other processes have the file open") || !strings.Contains(out, "lease server") {
					t.Errorf("%q: %v", live, err)
				}
			}
			// The same name is another directory in a container, and closed to a user.
			if out, err := other(h.live); err == nil {
				t.Errorf("%s is used: %s", h.live, out)
			}
			h.mustAcquire(p, 1)
			h.close(p)
			if out, err := other(""); err != nil {
				t.Errorf("alone: %v: %s", err, out)
			}
			p = h.open()
			h.mustAcquire(p, 1)
			h.close(p)
		})
	}
}

// executable is a copy of the test binary that every user may run.
func executable(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	must.Succeed(t, err)
	dir, err := os.MkdirTemp("", "kazahana-test-")
	must.Succeed(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	exe := filepath.Join(dir, "child")
	disktest.Run(t, "cp", self, exe)
	disktest.Run(t, "chmod", "755", dir, exe)
	return exe
}

// The longest term that was ever granted counts, for any process that finds that the file was put
// back, and whether a watermark remembers it or only the copy does.
func TestLongestTermIsRemembered(t *testing.T) {
	ring.All(t)
	for name, reboot := range map[string]bool{"by the watermark": false, "by the copy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			backup := filepath.Join(h.disk.Dir(), "backup")
			long := h.config()
			long.Services.Default.Term = 5 * time.Hour
			grant := func() {
				t.Helper()
				p, err := newLeases(h.Context(), long)
				must.Succeed(h, err)
				h.mustAcquire(p, 1)
				h.close(p)
			}
			if reboot {
				grant()
			} else {
				h.close(h.open())
			}
			disktest.Copy(t, h.path(), backup)
			h.clock.Add(1000)
			grant()
			if reboot {
				disktest.Reboot(t, h.live)
			}
			disktest.Ways[0].Put(t, backup, h.path(), false)
			h.fenced(h.open(), h.leases[len(h.leases)-1:])
		})
	}
}
