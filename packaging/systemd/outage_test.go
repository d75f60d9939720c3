//go:build linux

package systemd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// disk is a file system of its own that can be frozen.
type disk struct {
	t   *testing.T
	dir string
}

// newDisk makes one, or skips the test and says why.
func newDisk(t *testing.T) disk {
	t.Helper()
	d := disk{t, filepath.Join(t.TempDir(), "disk")}
	image := d.dir + ".image"
	must.Succeed(t, os.Mkdir(d.dir, 0o755))
	for _, args := range [][]string{{"truncate", "-s", "256M", image}, {"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, d.dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no disk can be made here that could be frozen: %v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", d.dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return d
}

// freeze has every write to the disk wait until thaw, or until the end of the test.
func (d disk) freeze() (thaw func()) {
	d.t.Helper()
	if out, err := exec.Command("fsfreeze", "--freeze", d.dir).CombinedOutput(); err != nil {
		d.t.Fatalf("fsfreeze: %v: %s", err, out)
	}
	frozen := true
	thaw = func() {
		if !frozen {
			return
		}
		frozen = false
		if out, err := exec.Command("fsfreeze", "--unfreeze", d.dir).CombinedOutput(); err != nil {
			d.t.Errorf("fsfreeze: %v: %s", err, out)
		}
	}
	d.t.Cleanup(thaw) // before the host is halted: its processes would wait for the disk
	return thaw
}

// longerThanAKeeper is how long the watchdog has to be fed during an outage: a
// keeper that takes no turn is noticed after 20 s and one call of the provider.
const longerThanAKeeper = 25 * time.Second

// TestOutages: while neither the provider nor the disk of the state directory
// answers, IDs are regular and the watchdog is fed. A stop ends within the time that
// the unit grants, and the next start goes on with the lease. The exercise of
// packaging/nfpm has every way to end the daemon.
func TestOutages(t *testing.T) {
	t.Parallel()
	ring.Deep(t)
	d := newDisk(t)
	h := boot(t, stage(t), d.dir+":/var/lib/kazahana")
	h.do("systemd-sysusers")
	h.do("systemd-tmpfiles", "--create", "kazahana.conf")
	h.do("install", "-d", "-o", "kazahana", "-m", "700", "/srv/kazahana")
	h.dropIn(server, "outage", "[Service]\nWatchdogSec=0\nReadWritePaths=/srv/kazahana\nEnvironment=KAZAHANA_PROVIDER=sqlite:/srv/kazahana/leases.db\n")
	h.dropIn(service, "outage", "[Service]\nWatchdogSec=5\nTimeoutAbortSec=1\n"+
		"Environment=KAZAHANA_PROVIDER_TIMEOUT=1s KAZAHANA_VERIFY_INTERVAL=200ms KAZAHANA_PROVIDER=http://127.0.0.1:7464\n")
	h.do("systemctl", "start", server)
	h.do("systemctl", "enable", "--now", socket, service)
	h.regular()
	machine := h.machineID()
	goesOn := func(after string) {
		t.Helper()
		h.regular()
		if got := h.machineID(); got != machine {
			t.Fatalf("after %s the machine ID is %s, and was %s\n%s", after, got, machine, h.journal())
		}
		h.fresh() // of the start limit
	}

	if o := h.try("kazahanad", "doctor"); o.code != 0 || !regexp.MustCompile(`ok +state +/var/lib/kazahana: .*; leases and marks in /run/kazahana-live/`).MatchString(o.out) {
		t.Errorf("doctor: %+v", o)
	}
	h.do("systemctl", "kill", "-s", "STOP", server)
	thaw := d.freeze()
	pid := h.show(service, "MainPID")
	h.fedFor(longerThanAKeeper)
	if now := h.show(service, "MainPID"); now != pid {
		t.Fatalf("the daemon was restarted\n%s", h.journal())
	}
	goesOn("a while of both")
	h.eventually("doctor tells of the frozen disk", func() bool {
		o := h.try("kazahanad", "doctor")
		return o.code == 1 && found(o.out, "state fail") && strings.Contains(o.out, "the disk of /var/lib/kazahana")
	})
	// A process that waits in the disk ends when that answers again.
	h.do("systemctl", "restart", "--no-block", service)
	h.logged("stopping: leases are given back")
	thaw()
	goesOn("a restart that met the frozen disk")

	h.do("systemctl", "stop", service)
	if result := h.show(service, "Result"); result != "success" {
		t.Errorf("the provider is frozen: the stop ended with %s\n%s", result, h.journal())
	}
	goesOn("a stop and a start by the socket")
}

// regular waits for an ID that is made under a lease.
func (h *host) regular() {
	h.t.Helper()
	h.eventually("there is a regular ID", func() bool { return h.as("app", "kazahanad", "id", "--regular-only").code == 0 })
}

// machineID is the one that the daemon has leased.
func (h *host) machineID() string {
	h.t.Helper()
	match := regexp.MustCompile(`lease +machine ID (\d+) `).FindStringSubmatch(h.do("kazahanad", "status"))
	if match == nil {
		h.t.Fatalf("no lease\n%s", h.journal())
	}
	return match[1]
}

// fedFor waits until the watchdog of the daemon has been fed for so long from now
// on, or is not any more.
func (h *host) fedFor(d time.Duration) {
	h.t.Helper()
	fed := func() time.Duration {
		us, err := strconv.ParseInt(h.show(service, "WatchdogTimestampMonotonic"), 10, 64)
		must.Succeed(h.t, err)
		return time.Duration(us) * time.Microsecond
	}
	began, pid := fed(), h.show(service, "MainPID")
	h.eventually("the watchdog is fed", func() bool {
		return fed()-began >= d || h.show(service, "MainPID") != pid || h.show(service, "ActiveState") != "active"
	})
}
