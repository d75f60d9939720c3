package unixsock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

func listen(t *testing.T, path string, o Options) *Listener {
	t.Helper()
	if o.Mode == 0 {
		o.Mode = 0o660
	}
	l, err := Listen(path, o)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestListenMakesDirectoryAndMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "s.sock")
	listen(t, path, Options{Mode: 0o606})
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o606 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestCloseRemovesTheSocketAndFreesThePath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	for range 3 {
		l := listen(t, path, Options{})
		must.Succeed(t, l.Close())
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("the socket is still there: %v", err)
		}
	}
}

func TestLiveSocketIsNeverReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	must.Succeed(t, err)
	defer l.Close()
	var inUse *InUseError
	if _, err := Listen(path, Options{Mode: 0o660}); !errors.As(err, &inUse) || inUse.PID != os.Getpid() {
		t.Errorf("got %v, want the PID %d named", err, os.Getpid())
	}
	if conn, err := net.Dial("unix", path); err != nil {
		t.Errorf("the live socket is gone: %v", err)
	} else {
		_ = conn.Close()
	}
}

func TestSecondListenerOfOurOwnIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	listen(t, path, Options{})
	var inUse *InUseError
	if _, err := Listen(path, Options{Mode: 0o660}); !errors.As(err, &inUse) || inUse.PID != os.Getpid() {
		t.Errorf("got %v", err)
	}
}

// TestOnlyOneOfManyGetsAStaleSocket: all at once find it stale, and one
// replaces it; no other takes it from that one.
func TestOnlyOneOfManyGetsAStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	must.Succeed(t, err)
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	var mu sync.Mutex
	var got []*Listener
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if l, err := Listen(path, Options{Mode: 0o660}); err == nil {
				mu.Lock()
				got = append(got, l)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(got) != 1 {
		t.Errorf("%d of 20 listen", len(got))
	}
	for _, l := range got {
		_ = l.Close()
	}
}

func TestWhatIsNoSocketIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must.Succeed(t, os.WriteFile(file, []byte("precious"), 0o600))
	link := filepath.Join(dir, "link")
	must.Succeed(t, os.Symlink(file, link))
	for _, path := range []string{file, link, dir} {
		if _, err := Listen(path, Options{Mode: 0o660}); err == nil || !strings.Contains(err.Error(), "not a socket") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file holds %q, %v", b, err)
	}
}

func TestPrivateDirectory(t *testing.T) {
	base := t.TempDir()
	listen(t, filepath.Join(base, "mine", "s.sock"), Options{Private: true})
	open := filepath.Join(base, "open")
	must.Succeed(t, os.Mkdir(open, 0o777))
	must.Succeed(t, os.Chmod(open, 0o777))
	must.Succeed(t, os.Symlink(filepath.Join(base, "mine"), filepath.Join(base, "link")))
	for _, dir := range []string{"open", "link"} {
		if _, err := Listen(filepath.Join(base, dir, "s.sock"), Options{Mode: 0o660, Private: true}); err == nil || !strings.Contains(err.Error(), "0700") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	own := listen(t, path, Options{})
	manager, managed := managed(t)
	inherited, err := Inherit(given(t, manager))
	must.Succeed(t, err)
	for l, path := range map[*Listener]string{own: path, inherited: managed} {
		for _, put := range []string{"", "file"} {
			must.Succeed(t, l.Lost())
			must.Succeed(t, os.Rename(path, path+".aside"))
			want := "was removed"
			if put != "" {
				must.Succeed(t, os.WriteFile(path, nil, 0o600))
				want = "was replaced"
			}
			if err := l.Lost(); err == nil || !strings.Contains(err.Error(), path+" "+want) {
				t.Errorf("%v, want %q", err, want)
			}
			must.Succeed(t, os.Rename(path+".aside", path))
		}
		must.Succeed(t, l.Lost())
	}
}

func TestGroup(t *testing.T) {
	dir := t.TempDir()
	if _, err := Listen(filepath.Join(dir, "a"), Options{Mode: 0o660, Group: "no such group"}); err == nil || !strings.Contains(err.Error(), "socket_group") {
		t.Errorf("an unknown group: %v", err)
	}
	me, err := user.Current()
	must.Succeed(t, err)
	listen(t, filepath.Join(dir, "b"), Options{Group: me.Gid})
}

func TestLongPath(t *testing.T) {
	if _, err := Listen("/tmp/"+strings.Repeat("x", 100), Options{Mode: 0o660}); err == nil || !strings.Contains(err.Error(), "103") {
		t.Errorf("got %v", err)
	}
}

func TestPeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l := listen(t, path, Options{})
	client, err := net.Dial("unix", path)
	must.Succeed(t, err)
	defer client.Close()
	server, err := l.AcceptUnix()
	must.Succeed(t, err)
	defer server.Close()
	peer, err := PeerOf(server)
	if err != nil || peer.PID != os.Getpid() || int(peer.UID) != os.Geteuid() || int(peer.GID) != os.Getegid() {
		t.Errorf("peer %+v, %v", peer, err)
	}
	groups, err := os.Getgroups()
	must.Succeed(t, err)
	if got := slices.Sorted(slices.Values(peer.Groups)); fmt.Sprint(got) != fmt.Sprint(slices.Sorted(slices.Values(groups))) {
		t.Errorf("groups %v, want %v", got, groups)
	}
}
