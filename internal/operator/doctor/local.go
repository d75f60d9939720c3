package doctor

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// JudgeConfiguration judges the result of reading the configuration.
func JudgeConfiguration(read string, err error) Finding {
	if err != nil {
		return finding("config.invalid", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return finding("config.ok", "the configuration is valid (%s)", read)
}

// Socket are the facts about the daemon's socket.
type Socket struct {
	Path    string
	Exists  bool
	Mode    fs.FileMode
	UID     uint32 // owner
	Group   string // owning group, by name if it has one
	GID     uint32
	Limited bool        // allow_uids or allow_gids is set
	Barrier string      // a directory on the way that users of the socket may not enter; "" = none
	Closed  fs.FileMode // mode of Barrier
	Hint    string      // who may connect; for a denied one
	Denied  bool        // this user may not connect, or not read the directory
	Refused bool        // no process listens
	Err     error       // a connection was made, and no answer came
}

// JudgeSocket judges the socket. answered is the daemon's mode.
func JudgeSocket(s Socket, answered string) []Finding {
	switch {
	case s.Denied:
		return []Finding{finding("socket.denied", "this user may not connect to %s; %s", s.Path, s.Hint)}
	case !s.Exists:
		return []Finding{finding("socket.missing", "there is no socket at %s: no daemon runs", s.Path)}
	case s.Mode.Type() != fs.ModeSocket:
		return []Finding{finding("socket.not_a_socket", "%s is not a socket (%v)", s.Path, s.Mode)}
	case s.Refused:
		return []Finding{finding("socket.stale", "no process listens on %s: the daemon that made it is gone", s.Path)}
	case s.Err != nil:
		return []Finding{finding("socket.silent", "%s does not answer: %v", s.Path, s.Err)}
	}
	found := []Finding{finding("socket.answers", "%s answers (%s); mode %04o, user %d, group %s", s.Path, answered, s.Mode.Perm(), s.UID, s.Group)}
	everybody := s.Mode.Perm()&0o002 != 0
	if s.Barrier != "" {
		who := "group " + s.Group
		if everybody {
			who = "every user"
		}
		found = append(found, finding("socket.unreachable", "%s may use %s, but may not enter the directory %s (mode %04o)", who, s.Path, s.Barrier, s.Closed))
	}
	switch {
	case everybody && !s.Limited:
		found = append(found, finding("socket.everybody", "every user of this host can connect to %s (mode %04o)", s.Path, s.Mode.Perm()))
	case !everybody && s.UID == 0 && (s.GID == 0 || s.Mode.Perm()&0o020 == 0):
		found = append(found, finding("socket.root_only", "only root can connect to %s (mode %04o, group %s)", s.Path, s.Mode.Perm(), s.Group))
	}
	return found
}

// Daemon are the facts that a running daemon reports.
type Daemon struct {
	PID              int
	Version          string
	Installed        string // version of the command that asks
	Mode, Cause      string
	Provider         string   // as in provider.Info.URL
	ConfiguredFor    string   // the same, as the configuration has it; "" = it names none
	StateDir         string   // "" = none
	ConfiguredStates string   // the same, as the configuration has it; StateDir where it has none
	Overload         []string // limits that refused something in the last minute
}

// JudgeDaemon judges a running daemon.
func JudgeDaemon(d Daemon) []Finding {
	var found []Finding
	cause := cmp.Or(d.Cause, "no cause is known")
	switch d.Mode {
	case "regular":
		found = append(found, finding("daemon.regular", "process %d issues regular IDs", d.PID))
	case "starting":
		found = append(found, finding("daemon.starting", "process %d waits for its first lease", d.PID))
	case "unavailable":
		found = append(found, finding("daemon.unavailable", "process %d can issue no IDs: %s", d.PID, cause))
	case "fallback_cached_uncertain":
		found = append(found, finding("daemon.uncertain", "process %d issues cached fallback IDs beyond the reservation of its last lease: another host may make the same ones: %s", d.PID, cause))
	default:
		found = append(found, finding("daemon.fallback", "process %d issues fallback IDs (%s): %s", d.PID, d.Mode, cause))
	}
	for _, hit := range d.Overload {
		found = append(found, finding("daemon.overloaded", "%s", hit))
	}
	if d.Version != d.Installed {
		found = append(found, finding("daemon.version", "process %d runs version %s, and %s is installed", d.PID, d.Version, d.Installed))
	}
	var unlike []string
	if d.ConfiguredFor != "" && d.Provider != d.ConfiguredFor {
		unlike = append(unlike, fmt.Sprintf("it leases from %s, the configuration names %s", d.Provider, d.ConfiguredFor))
	}
	if d.StateDir != d.ConfiguredStates {
		unlike = append(unlike, fmt.Sprintf("its state is in %s, the configuration says %s", cmp.Or(d.StateDir, "none"), cmp.Or(d.ConfiguredStates, "none")))
	}
	if len(unlike) > 0 {
		found = append(found, finding("config.unlike_daemon", "process %d was started with other settings than are seen here: %s", d.PID, strings.Join(unlike, "; ")))
	}
	return found
}

// Free space that a state directory or a store should have. They need little, but a
// full disk stops every write.
const (
	spaceNeeded = 4 << 20
	spaceWished = 64 << 20
)

// FileSystem are the facts about the file system of a file or a directory.
type FileSystem struct {
	Type     string // "ext4", "nfs"; "" = not known
	Free     uint64 // bytes, for those who are not root
	ReadOnly bool
}

// Kinds of file systems, by what they lack.
var (
	networkTypes  = []string{"nfs", "nfs4", "cifs", "smb", "smb2", "9p", "afs", "ceph", "coda", "gfs2", "lustre", "ocfs2", "fuse"}
	volatileTypes = []string{"tmpfs", "ramfs", "overlay"}
)

// StateDir are the facts about a state directory.
type StateDir struct {
	Path       string // "" = none
	Exists     bool
	Directory  bool
	Mode       fs.FileMode
	UID        uint32
	DaemonUID  uint32 // the daemon's user: the running one's, else the unit's, else this one
	Known      bool   // DaemonUID is the running daemon's
	Unreadable bool   // this user may not read it
	Lost       bool   // it is missing for the running daemon too
	Kubernetes bool
	FS         FileSystem
	Used       bool   // a daemon has used it, and its files can be read
	Forgot     bool   // it was used, and the state file is gone
	Damage     error  // the state file cannot be used
	Start      error  // why a daemon cannot start there; nil if it can, or is not known
	Holder     string // another process that has it; "" = none, or the daemon that answers
	Refused    []string
	Ahead      []string // services whose earlier IDs are dated far ahead of this host's clock

	Live        string // where leases and marks are; "" = in the state directory
	LiveMissing bool
	LiveOnDisk  bool
	LiveDamage  error
	LiveError   string // why the running daemon cannot write there; "" if it can

	Stalled    time.Duration // how long the disk has kept the running daemon waiting
	WriteError string        // why its last write failed; "" if it did not
}

// markAhead is how far ahead of the clock a mark must be to be reported.
const markAhead = time.Hour

// stallNoticed is how long a write may take before the disk counts as stalled.
const stallNoticed = 5 * time.Second

// Stalls reports whether the running daemon waits for that disk.
func (s StateDir) Stalls() bool { return s.Stalled > stallNoticed }

// JudgeStateDir judges a state directory.
func JudgeStateDir(s StateDir) []Finding {
	switch {
	case s.Path == "":
		return []Finding{finding("state.none", "there is no state directory")}
	case s.Unreadable && !s.Exists:
		return refuseStart([]Finding{finding("state.unreadable", "this user cannot read %s", s.Path)}, s)
	case s.Lost:
		return []Finding{finding("state.lost", "the running daemon's directory %s is not there any more", s.Path)}
	case !s.Exists && s.Known:
		return []Finding{finding("state.unreadable", "%s of the running daemon is in another container", s.Path)}
	case !s.Exists && s.Start != nil:
		return refuseStart(nil, s)
	case !s.Exists:
		return []Finding{finding("state.new", "%s is not there yet: the daemon makes it at its first start", s.Path)}
	case !s.Directory:
		return []Finding{finding("state.not_a_directory", "%s is not a directory (%v)", s.Path, s.Mode)}
	}
	var found []Finding
	foreign := s.UID != s.DaemonUID
	switch everybody := s.Mode.Perm()&0o002 != 0; {
	case everybody && foreign:
		found = append(found, finding("state.open_foreign", "every user may write to %s, and it belongs to user %d: a daemon of user %d refuses it", s.Path, s.UID, s.DaemonUID))
	case everybody:
		found = append(found, finding("state.open", "every user may write to %s (mode %04o)", s.Path, s.Mode.Perm()))
	case foreign && s.Known && s.DaemonUID != 0:
		found = append(found, finding("state.foreign_owner", "%s belongs to user %d, and the daemon is user %d", s.Path, s.UID, s.DaemonUID))
	}
	found = append(found, judgeFileSystem("state", s.Path, s.FS, s.Kubernetes)...)
	if s.Stalls() {
		found = append(found, finding("state.stalled", "the disk of %s has kept a write waiting for %v", s.Path, s.Stalled.Round(time.Second)))
	}
	if s.WriteError != "" {
		found = append(found, finding("state.write_failed", "the daemon's last write to %s failed: %s", s.Path, s.WriteError))
	}
	found = append(found, judgeLive(s)...)
	if s.Damage != nil {
		found = append(found, finding("state.damaged", "%v", s.Damage))
	}
	for _, service := range s.Ahead {
		found = append(found, finding("state.mark_ahead", "service %s made IDs that are dated more than %v ahead of this host's clock, and makes none until then", service, markAhead))
	}
	for _, service := range s.Refused {
		found = append(found, finding("state.refused_epoch", "service %s was offered a lease with another epoch or other bits of time, and refused it", service))
	}
	if s.Forgot {
		found = append(found, finding("state.missing", "%s was in use, and the file with its state is gone", s.Path))
	}
	if s.Holder != "" && !s.Known {
		found = append(found, finding("state.in_use", "%s belongs to %s, which does not answer on the socket", s.Path, s.Holder))
	}
	if s.Unreadable {
		found = append(found, finding("state.unreadable", "this user cannot read the files in %s", s.Path))
	}
	found = refuseStart(found, s)
	if len(found) == 0 {
		live := ""
		if s.Live != "" {
			live = "; leases and marks in " + s.Live
		}
		found = append(found, finding("state.ok", "%s: user %d, mode %04o, %s, %s free%s", s.Path, s.UID, s.Mode.Perm(), s.FS.name(), size(s.FS.Free), live))
	}
	return found
}

// refuseStart adds why a daemon cannot start there, unless a failure says so by itself.
func refuseStart(found []Finding, s StateDir) []Finding {
	if s.Start == nil || Worst(found) == Fail {
		return found
	}
	return append(found, finding("state.unusable", "%v", s.Start))
}

// Unusable says why a daemon cannot start with a socket, another listener, or the provider's
// file; the code is that of the part.
func Unusable(code, what string, err error) Finding { return finding(code, "%s: %v", what, err) }

// judgeLive judges the place of the leases and the marks.
func judgeLive(s StateDir) []Finding {
	switch {
	case s.LiveError != "":
		return []Finding{finding("state.live_failed", "the daemon cannot keep its leases and marks in memory: %s", s.LiveError)}
	case !s.Used:
	case s.LiveDamage != nil:
		return []Finding{finding("state.live_damaged", "%v", s.LiveDamage)}
	case s.Live == "":
		return []Finding{finding("state.live_none", "leases and marks of %s do not survive a kill -9: there is no live directory", s.Path)}
	case s.LiveOnDisk:
		return []Finding{finding("state.live_on_disk", "%s is not on a file system in memory", s.Live)}
	case s.LiveMissing && s.Known:
		return []Finding{finding("state.live_lost", "%s is gone, though a daemon runs", s.Live)}
	}
	return nil
}

func (f FileSystem) name() string { return cmp.Or(f.Type, "unknown file system") }

// judgeFileSystem judges the file system of the state or of a SQLite store.
func judgeFileSystem(area, path string, f FileSystem, volatileIsFine bool) (found []Finding) {
	kind, _, _ := strings.Cut(f.Type, ".") // fuse.sshfs
	if slices.Contains(networkTypes, kind) {
		found = append(found, finding(area+".network", "%s is on a file system of type %s", path, f.Type))
	}
	if area == "state" {
		if f.ReadOnly {
			found = append(found, finding("state.read_only", "%s is on a file system that is mounted read-only", path))
		}
		if slices.Contains(volatileTypes, kind) && !volatileIsFine {
			found = append(found, finding("state.volatile", "%s is on a file system of type %s: it is gone after a reboot, or with the container", path, f.Type))
		}
	}
	switch {
	case f.Type == "" || f.ReadOnly:
	case f.Free < spaceNeeded:
		found = append(found, finding(area+".full", "%s has %s free", path, size(f.Free)))
	case f.Free < spaceWished && area == "state" && !volatileIsFine: // a pod's volume is small on purpose
		found = append(found, finding("state.low", "%s has %s free", path, size(f.Free)))
	}
	return found
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
type Place struct {
	Kubernetes bool
	Container  bool
}

// JudgeScope judges how far the provider's promise reaches at this place. scope is
// that of provider.Info.
func JudgeScope(scope, provider string, place Place) Finding {
	switch {
	case scope == "shared":
		return finding("scope.shared", "%s coordinates all hosts that use it", provider)
	case scope == "host" && place.Kubernetes:
		return finding("scope.kubernetes", "%s coordinates the daemons that use this one file, and every pod has its own", provider)
	case scope == "host" && place.Container:
		return finding("scope.container", "%s coordinates the daemons that use this one file, and containers may have one each", provider)
	case scope == "host":
		return finding("scope.host", "%s coordinates the daemons of this host; other hosts with a file of their own make the same IDs", provider)
	case scope == "none":
		return finding("scope.none", "there is no provider: every ID is a fallback ID")
	}
	return finding("scope.unverified", "%s does not coordinate its users", provider)
}

// layoutNotice is how long before the end of a layout's time doctor warns.
const layoutNotice = 3 * 365 * 24 * time.Hour

// JudgeLayout judges when a service's time runs out.
func JudgeLayout(service string, end, now time.Time) Finding {
	date := end.UTC().Format(time.DateOnly)
	switch left := end.Sub(now); {
	case left <= 0:
		return finding("layout.over", "service %s: the time of its layout ran out on %s", service, date)
	case left < layoutNotice:
		return finding("layout.soon", "service %s: the time of its layout runs out on %s", service, date)
	}
	return finding("layout.ok", "service %s: the time of its layout runs out on %s", service, date)
}

// filesBeside is the number of files that a daemon opens besides the socket's connections,
// those of its admin listener included.
const filesBeside = 448

// Files is how many files a daemon may have open.
type Files struct {
	Whose          string
	Limit          uint64
	MaxConnections int
	Err            error
}

// JudgeFiles judges the limit of open files.
func JudgeFiles(f Files) Finding {
	need := uint64(f.MaxConnections) + filesBeside
	switch {
	case f.Err != nil:
		return finding("files.unknown", "the limit of open files of %s cannot be read: %v", f.Whose, f.Err)
	case f.Limit < need:
		return finding("files.low", "%s may have %d files open, and %d connections (max_connections) need %d", f.Whose, f.Limit, f.MaxConnections, need)
	}
	return finding("files.ok", "%s may have %d files open", f.Whose, f.Limit)
}

// firstPort is the first TCP port that every user may have, unless the host says otherwise.
const firstPort = 1024
