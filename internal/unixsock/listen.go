// Package unixsock makes the socket that the daemon listens on, and identifies its
// peers. It replaces a socket that a crashed process left, but never a live one, or a
// file that is not a socket.
package unixsock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/folder"
)

// maxPath is the longest path of a socket (sun_path, less its NUL) on the stricter of
// the supported systems.
const maxPath = 103

// probeTimeout is how long probe waits for a connection. A process that is slower
// counts as alive.
const probeTimeout = time.Second

// InUseError says that another process listens on the path.
type InUseError struct {
	Path string
	PID  int    // 0 = not known
	Flag string // that names the path
}

func (e *InUseError) Error() string {
	who := "another process"
	if e.PID > 0 {
		who = "process " + strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("socket %s is in use by %s; stop it, or choose another with %s", e.Path, who, e.Flag)
}

// Options of Listen.
type Options struct {
	Mode    fs.FileMode // permissions of the socket
	Group   string      // name or number; "" leaves the process's own
	Private bool        // the directory is made 0700, and must be the caller's own
	Flag    string      // that names the path, for errors; --socket unless set
}

// Listener is a Unix socket with a path that belongs to this process until Close, or an inherited
// one.
type Listener struct {
	*net.UnixListener
	lock  *os.File    // nil: inherited
	bound fs.FileInfo // what the path led to when it was bound; nil: not known
}

// Listen binds path, and makes its directory if it is missing.
func Listen(path string, o Options) (*Listener, error) {
	o.Flag = cmp.Or(o.Flag, "--socket")
	if err := checkLength(path); err != nil {
		return nil, err
	}
	if err := prepareDirectory(filepath.Dir(path), o); err != nil {
		return nil, err
	}
	// Check before making the lock's file, which does not belong beside other files.
	if err := checkSocket(path, o.Flag); err != nil {
		return nil, err
	}
	lock, err := lockPath(path, o.Flag)
	if err != nil {
		return nil, err
	}
	l, err := bind(path, o)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	bound, _ := os.Lstat(path)
	return &Listener{UnixListener: l, lock: lock, bound: bound}, nil
}

// Lost returns why clients that come now do not find the socket at its path; nil if they do,
// or if that is not known. One goroutine may call it at a time.
func (l *Listener) Lost() error {
	path := l.Path()
	if l.bound == nil {
		return nil
	}
	remedy := "restart the daemon"
	if l.lock == nil {
		remedy = "restart the socket unit"
	}
	found, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("socket %s was removed: no new client can connect; put it back, or %s", path, remedy)
	case err != nil || os.SameFile(found, l.bound):
		return nil
	case found.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("socket %s was replaced (%v): no new client can connect; %s", path, found.Mode(), remedy)
	}
	// Some file systems give a file another number in time.
	alive, pid := probe(path)
	if alive && pid == os.Getpid() {
		l.bound = found
		return nil
	}
	by := "that of another process"
	switch {
	case !alive:
		by = "one on which no process listens"
	case pid != 0:
		by = fmt.Sprintf("that of process %d", pid)
	}
	return fmt.Errorf("socket %s was replaced by %s: new clients do not reach this process; %s", path, by, remedy)
}

// Check returns the error that Listen would have in a process of that user and those groups,
// nil if they are not known, and changes nothing. The process that asks has that user's rights. Whether the directory can be written or made
// is another question.
func Check(path string, o Options, uid int, groups []int) error {
	o.Flag = cmp.Or(o.Flag, "--socket")
	if err := checkLength(path); err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if _, err := os.Lstat(dir); err == nil && o.Private {
		if err := checkPrivate(dir, uid, o.Flag); err != nil {
			return err
		}
	}
	if err := checkSocket(path, o.Flag); err != nil {
		return err
	}
	if alive, pid := probe(path); alive {
		return &InUseError{Path: path, PID: pid, Flag: o.Flag}
	}
	lock, err := os.OpenFile(lockName(path), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case err == nil:
		_ = lock.Close() // nothing was written
	case !errors.Is(err, fs.ErrNotExist):
		return lockError(path, o.Flag, err)
	}
	gid, err := groupID(o.Group)
	if err == nil && gid >= 0 && uid != 0 && groups != nil && !slices.Contains(groups, gid) {
		err = fmt.Errorf("socket %s: cannot give it to group %s, which user %d is not in: add the user to it, or set another socket_group", path, o.Group, uid)
	}
	return err
}

func lockName(path string) string { return path + ".lock" }

func lockError(path, flag string, err error) error {
	if _, missing := os.Lstat(lockName(path)); missing == nil {
		return fmt.Errorf("socket %s: its lock cannot be used; remove %s if it is another user's: %w", path, lockName(path), err)
	}
	return fmt.Errorf("socket %s: its directory cannot be written; choose another with %s: %w", path, flag, err)
}

func checkLength(path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("socket %s: the path has %d bytes, and a socket's may have %d", path, len(path), maxPath)
	}
	return nil
}

// Close stops listening. It removes the socket and frees its path, unless it is
// inherited.
func (l *Listener) Close() error {
	if l.lock == nil {
		return l.UnixListener.Close()
	}
	return errors.Join(l.UnixListener.Close(), l.lock.Close())
}

// Path is where clients find the socket.
func (l *Listener) Path() string { return l.Addr().(*net.UnixAddr).Name }

func prepareDirectory(dir string, o Options) error {
	mode := fs.FileMode(0o755)
	if o.Private {
		mode = 0o700
	}
	if _, err := folder.Make(dir, mode); err != nil {
		return fmt.Errorf("socket directory: %w; choose another with %s", err, o.Flag)
	}
	if !o.Private {
		return nil
	}
	return checkPrivate(dir, os.Geteuid(), o.Flag)
}

// checkPrivate returns an error unless only the user can write to the directory: below /tmp
// another user could have made it first.
func checkPrivate(dir string, uid int, flag string) error {
	var st unix.Stat_t
	info, err := os.Lstat(dir)
	if err == nil {
		err = unix.Lstat(dir, &st)
	}
	if err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	if !info.IsDir() || int(st.Uid) != uid || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("socket directory %s must be a directory of user %d with mode 0700, and is %v of user %d; choose another with %s",
			dir, uid, info.Mode(), st.Uid, flag)
	}
	return nil
}

// lockPath keeps two processes that start at once from removing each other's socket as
// stale. The kernel drops the lock with the process.
func lockPath(path, flag string) (*os.File, error) {
	f, err := os.OpenFile(lockName(path), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, lockError(path, flag, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			_, pid := probe(path)
			return nil, &InUseError{Path: path, PID: pid, Flag: flag}
		}
		return nil, fmt.Errorf("lock for socket %s: %w", f.Name(), err)
	}
	return f, nil
}

func bind(path string, o Options) (*net.UnixListener, error) {
	gid, err := groupID(o.Group)
	if err != nil {
		return nil, err
	}
	if err := removeStale(path, o.Flag); err != nil {
		return nil, err
	}
	// The socket is made with its permissions, so that no client is refused for a moment. Its group
	// gets them once the socket is the group's.
	first := o.Mode.Perm()
	if gid >= 0 {
		first &^= 0o070
	}
	old := unix.Umask(int(0o777 &^ first))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, unwrapOp(err))
	}
	if gid >= 0 {
		if err := os.Chown(path, -1, gid); err != nil {
			return nil, errors.Join(fmt.Errorf("socket %s: cannot give it to group %s: %w", path, o.Group, err), l.Close())
		}
	}
	if err := os.Chmod(path, o.Mode.Perm()); err != nil { // a default ACL of the directory changes what the socket was made with
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	return l, nil
}

// checkSocket returns an error if the path is taken by something else than a socket.
func checkSocket(path, flag string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return nil // nothing there, or later steps report the error
	}
	return mustBeSocket(path, flag, info)
}

func mustBeSocket(path, flag string, info fs.FileInfo) error {
	if info.Mode().Type() == fs.ModeSocket {
		return nil
	}
	return fmt.Errorf("socket %s: the path is taken by something that is not a socket (%v); move it away, or choose another with %s",
		path, info.Mode(), flag)
}

// removeStale removes a socket that a process left behind.
func removeStale(path, flag string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if err := mustBeSocket(path, flag, info); err != nil {
		return err
	}
	alive, pid := probe(path)
	if alive {
		return &InUseError{Path: path, PID: pid, Flag: flag}
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("stale socket: %w", err)
	}
	return nil
}

// probe reports whether a process listens on the path, and which. Only a
// refused connection proves that none does.
func probe(path string) (alive bool, pid int) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist), 0
	}
	defer conn.Close()
	peer, err := PeerOf(conn.(*net.UnixConn))
	if err != nil {
		return true, 0
	}
	return true, peer.PID
}

// CheckGroup returns an error if there is no such group; "" is the process's own.
func CheckGroup(name string) error {
	_, err := groupID(name)
	return err
}

func groupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	if gid, err := strconv.Atoi(name); err == nil && gid >= 0 {
		return gid, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("socket_group: there is no group %q: create it, or name another: %w", name, err)
	}
	return strconv.Atoi(g.Gid)
}

// unwrapOp drops the addresses that package net repeats.
func unwrapOp(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}
