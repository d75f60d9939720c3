package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Free space that a state directory should have. It needs little, but a full disk stops
// every write.
const (
	spaceNeeded = 4 << 20
	spaceWished = 64 << 20
)

// Kinds of file systems, by what they lack.
var (
	networkTypes  = []string{"nfs", "nfs4", "cifs", "smb", "smb2", "9p", "afs", "ceph", "coda", "gfs2", "lustre", "ocfs2", "fuse"}
	volatileTypes = []string{"tmpfs", "ramfs", "overlay"}
)

// FileSystem judges the file system that a directory or a file is on, or will be on once it
// exists, and describes it. With small, it is a pod's volume, which is small and short-lived on purpose.
func (r *Report) FileSystem(step, path string, small bool) string {
	var st unix.Statfs_t
	for at := path; unix.Statfs(at, &st) != nil; at = filepath.Dir(at) {
		if at == filepath.Dir(at) {
			return "unknown file system"
		}
	}
	full, readOnly := describe(&st)
	kind, _, _ := strings.Cut(full, ".") // fuse.sshfs
	free := uint64(st.Bavail) * uint64(st.Bsize)
	if slices.Contains(networkTypes, kind) {
		r.Fail(step, "Name a place on a local file system: locks and memory-mapped files do not work reliably over a network.", "%s is on a file system of type %s", path, full)
	}
	if slices.Contains(volatileTypes, kind) && step == "state" && !small {
		r.Warn(step, "Set state_dir to a directory that outlives the container and the host's reboot.", "%s is on a file system of type %s: it is gone after a reboot, or with the container", path, full)
	}
	switch {
	case readOnly:
		r.Fail(step, "Mount it writable, or name another place.", "%s is on a file system that is mounted read-only", path)
	case free < spaceNeeded:
		r.Fail(step, "Free some space on that file system.", "%s has %s free", path, size(free))
	case free < spaceWished && !small:
		r.Warn(step, "Free some space on that file system.", "%s has %s free", path, size(free))
	}
	return cmp.Or(full, "unknown file system") + ", " + size(free) + " free"
}

func size(n uint64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// Place is the kind of environment that the process runs in.
type Place struct{ Kubernetes, Container bool }

// ProbePlace finds that out.
func ProbePlace(lookup func(string) (string, bool)) (p Place) {
	_, p.Kubernetes = lookup("KUBERNETES_SERVICE_HOST")
	_, p.Container = lookup("container") // set by systemd-nspawn and podman
	for _, mark := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(mark); err == nil {
			p.Container = true
		}
	}
	p.Container = p.Container || p.Kubernetes
	return p
}

// Scope judges how far the provider's promise reaches at this place. scope is that of
// provider.Info.
func (r *Report) Scope(scope, provider string, place Place) {
	const step = "scope"
	switch {
	case scope == "shared":
		r.OK(step, "%s coordinates all hosts that use it", provider)
	case scope == "host" && place.Kubernetes:
		r.Fail(step, "Name a provider that all pods share: kubernetes:, http(s)://, postgres://, redis:// or etcd://.", "%s coordinates the daemons that use this one file, and every pod has its own", provider)
	case scope == "host" && place.Container:
		r.Warn(step, "Name a provider that the containers share, or mount one file into all containers of this host and run no others.", "%s coordinates the daemons that use this one file, and containers may have one each", provider)
	case scope == "host":
		r.OK(step, "%s coordinates the daemons of this host; other hosts with a file of their own make the same IDs", provider)
	case scope == "none":
		r.Warn(step, "Name a provider, unless IDs that only chance keeps apart will do.", "there is no provider: every ID is a fallback ID")
	default:
		r.Warn(step, "Make sure by other means that no two daemons have the same machine ID, or name a provider that coordinates.", "%s does not coordinate its users", provider)
	}
}

// LostTo reports whether a path is missing for a process too. Where this user cannot
// look, or the process is in another container, it may be there.
func LostTo(pid int, path string) bool {
	root := fmt.Sprintf("/proc/%d/root", pid)
	if _, err := os.Stat(root); err != nil {
		return false
	}
	_, err := os.Stat(filepath.Join(root, path))
	return errors.Is(err, fs.ErrNotExist)
}

// SamePlace reports whether a process's directory is the one that this process knows by
// that path.
func SamePlace(pid int, its, path string) bool {
	if its == path {
		return true
	}
	a, err := os.Stat(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), its))
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// Listens reports whether a process listens on the port of a TCP address, or may, where
// that cannot be seen.
func Listens(pid int, address string) bool {
	tcp, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return false
	}
	its := map[string]bool{}
	proc := fmt.Sprintf("/proc/%d", pid)
	files, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return true
	}
	for _, f := range files {
		if to, err := os.Readlink(proc + "/fd/" + f.Name()); err == nil {
			its[to] = true
		}
	}
	const listening = "0A"
	for _, family := range []string{"/net/tcp", "/net/tcp6"} {
		table, _ := os.ReadFile(proc + family) // a kernel without IPv6 has no tcp6
		for line := range strings.Lines(string(table)) {
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == listening && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", tcp.Port)) && its["socket:["+f[9]+"]"] {
				return true
			}
		}
	}
	return false
}
