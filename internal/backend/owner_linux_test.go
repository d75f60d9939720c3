package backend

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// ownedStore is a store with a file that a process owns, and the store of a command beside it.
func ownedStore(t *testing.T, live string) (owner, command *Store) {
	t.Helper()
	url := "sqlite:" + filepath.Join(t.TempDir(), sqlitefile.StoreName)
	open := func(opts StoreOptions) *Store {
		s, err := OpenStore(url, opts)
		must.Succeed(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	owner, command = open(StoreOptions{LiveDir: live}), open(StoreOptions{})
	_, err := owner.Sequences.Next(t.Context(), sequence.Request{Tenant: "default", Key: "orders", Count: 3, Options: sequence.DefaultOptions()})
	must.Succeed(t, err)
	return owner, command
}

// What an operator's command cannot do by itself, because a process owns the file, it has the
// owner do.
func TestOwnerIsAsked(t *testing.T) {
	owner, command := ownedStore(t, disktest.Memory(t))
	if _, err := command.Locks.Do(t.Context(), request(lock.Acquire, "k", "alice", time.Minute)); !errors.As(err, new(*sqlitefile.OwnedError)) {
		t.Fatalf("a lock: %v", err)
	}
	must.Succeed(t, command.Look(t.Context()))
	if f := command.Fenced(); f != nil {
		t.Errorf("at first: %+v", f)
	}
	wantHeld(t, command, false, false)
	fence, err := command.Fence(t.Context())
	if err != nil || !fence.Sequences || fence.UntilMS < time.Now().UnixMilli() {
		t.Fatalf("Fence: %+v, %v", fence, err)
	}
	must.Succeed(t, command.Look(t.Context()))
	if f := command.Fenced(); f == nil || *f != *fence || *owner.Fenced() != *fence {
		t.Errorf("Look: %+v, the owner: %+v, want %+v", f, owner.Fenced(), fence)
	}
	wantHeld(t, command, true, false)
	declaration := sequence.Declaration{Tenant: "default", Key: "orders", Options: sequence.DefaultOptions(), Last: 41}
	must.Succeed(t, command.Declare(t.Context(), declaration))
	next := func() (int64, error) {
		got, err := owner.Sequences.Next(t.Context(), sequence.Request{Tenant: "default", Key: "orders", Count: 1, Options: sequence.DefaultOptions()})
		return got.First, err
	}
	if v, err := next(); err != nil || v != 42 {
		t.Errorf("after Declare: %d, %v", v, err)
	}
	must.Succeed(t, command.Init(t.Context()))
	if f := owner.Fenced(); f != nil {
		t.Errorf("after Init: %+v", f)
	}
	to := filepath.Join(t.TempDir(), "backup")
	must.Succeed(t, command.Backup(t.Context(), to))
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup: %v, %v", info, err)
	}
	if err := command.Backup(t.Context(), to); !errors.Is(err, os.ErrExist) || !strings.Contains(err.Error(), "overwrites nothing") {
		t.Errorf("a second backup: %v", err)
	}
	copied, err := OpenStore("sqlite:"+to, StoreOptions{})
	must.Succeed(t, err)
	defer copied.Close()
	must.Succeed(t, copied.Look(t.Context()))
	if f := copied.Fenced(); f == nil || !strings.Contains(f.Reason, "copy") {
		t.Errorf("the copy: %+v", f)
	}
	entries, err := os.ReadDir(filepath.Dir(strings.TrimPrefix(owner.URL, "sqlite:")))
	must.Succeed(t, err)
	for _, e := range entries {
		if strings.Contains(e.Name(), "copy") {
			t.Errorf("%s is left", e.Name())
		}
	}
}

// The next owner removes what an owner that was killed left of a backup.
func TestCopyOfAKilledOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), sqlitefile.StoreName)
	left := path + copySuffix
	must.Succeed(t, errors.Join(os.Mkdir(left, 0o700), os.WriteFile(filepath.Join(left, "copy.new-1"), []byte("secrets"), 0o600)))
	s, err := OpenStore("sqlite:"+path, StoreOptions{})
	must.Succeed(t, err)
	defer s.Close()
	must.Succeed(t, s.Look(t.Context()))
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left (%v)", left, err)
	}
}

// A stop waits for no request that a disk holds up.
func TestOwnerClosesWithoutTheDisk(t *testing.T) {
	o, err := new(Store).listenAsOwner(filepath.Join(t.TempDir(), "sock"), "")
	must.Succeed(t, err)
	held := make(chan struct{})
	o.serving.Go(func() { <-held })
	defer close(held)
	closed := make(chan error, 1)
	go func() { closed <- o.Close() }()
	select {
	case err := <-closed:
		must.Succeed(t, err)
	case <-time.After(await.Patience):
		t.Error("Close waits for the disk")
	}
}

// Without a live directory an owner takes no requests, and the error says who it is.
func TestOwnerWithoutALiveDirectory(t *testing.T) {
	_, command := ownedStore(t, "")
	if _, err := command.Fence(t.Context()); !errors.As(err, new(*sqlitefile.OwnedError)) || !strings.Contains(err.Error(), "owns the file") {
		t.Errorf("Fence: %v", err)
	}
}

// Another user gets nothing of the owner.
func TestOwnerServesItsUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	live := disktest.Memory(t)
	ownedStore(t, live)
	sockets, err := filepath.Glob(live + "/*.sock")
	if err != nil || len(sockets) != 1 {
		t.Fatalf("%v, %v", sockets, err)
	}
	if info, err := os.Stat(sockets[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	must.Succeed(t, errors.Join(os.Chmod(live, 0o777), os.Chmod(sockets[0], 0o666))) // so that the peer alone decides
	ask := func(uid int) string {
		conn := as(t, uid, sockets[0])
		defer conn.Close()
		_, _ = conn.Write([]byte(`{"Op":"look"}` + "\n"))
		answer, _ := io.ReadAll(conn)
		return string(answer)
	}
	if got := ask(0); got != "{}\n" {
		t.Errorf("root gets %q", got)
	}
	if got := ask(65534); got != "" {
		t.Errorf("another user gets %q", got)
	}
}

// as connects as a user.
func as(t *testing.T, uid int, socket string) net.Conn {
	t.Helper()
	type dialed struct {
		net.Conn
		error
	}
	done := make(chan dialed)
	go func() { // of a thread that ends with it
		if uid != 0 {
			runtime.LockOSThread()
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
				done <- dialed{error: errno}
				return
			}
		}
		conn, err := net.Dial("unix", socket)
		done <- dialed{conn, err}
	}()
	d := <-done
	must.Succeed(t, d.error)
	return d.Conn
}
