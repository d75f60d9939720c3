package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
)

// elsewhere is a second site that shares what share sets.
func elsewhere(t *testing.T, share func(*site)) *site {
	t.Helper()
	s := newSite(t)
	share(s)
	return s
}

func TestSecondDaemonOnOneStateDirectory(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.Start()
	id := s.Dial().ID()
	second := elsewhere(t, func(o *site) { o.State = s.State })
	said := second.Launch().FailsToStart(exitFailure)
	for _, want := range []string{fmt.Sprintf("process %d", first.PID()), s.State, "state_dir"} {
		if !strings.Contains(said, want) {
			t.Errorf("it said %q, want %q in it", said, want)
		}
	}
	if _, err := os.Lstat(second.Socket); err == nil {
		t.Error("it made its socket before it had the state directory")
	}
	if next := s.Dial().ID(); next <= id {
		t.Errorf("the first daemon went from %d to %d", id, next)
	}
	s.Kazahanad("state", "reset-floor", "--yes").Fails(t, exitFailure, fmt.Sprintf("process %d", first.PID()))
	s.Kazahanad("state", "accept-epoch").Fails(t, exitFailure, fmt.Sprintf("process %d", first.PID()))
}

func TestSecondDaemonOnOneSocket(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.Start()
	id := s.Dial().ID()
	inUse := fmt.Sprintf("in use by process %d", first.PID())
	for _, c := range []struct {
		name  string
		first func()
	}{
		{"as it is", func() {}},
		// An operator takes it for a left-over.
		{"lock file removed", func() {
			if err := os.Remove(s.Socket + ".lock"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		c.first()
		second := elsewhere(t, func(o *site) { o.Socket = s.Socket })
		said := second.Launch().FailsToStart(exitFailure)
		if !strings.Contains(said, inUse) || !strings.Contains(said, s.Socket) {
			t.Errorf("%s: it said %q, want %q in it", c.name, said, inUse)
		}
		c := s.Dial()
		if next := c.ID(); next <= id || c.Status().PID != first.PID() {
			t.Errorf("the first daemon no longer answers as before: %d after %d", next, id)
		}
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.Start()
	last := s.Dial().ID()
	for range 2 {
		d.Kill()
		if info, err := os.Lstat(s.Socket); err != nil || info.Mode().Type() != os.ModeSocket {
			t.Fatalf("kill -9 left no socket: %v, %v", info, err)
		}
		s.Kazahanad("id").Fails(t, exitFailure, s.Socket, "no daemon listens", "kazahanad serve")
		d = s.Start()
		if id := s.Dial().ID(); id <= last {
			t.Errorf("%d came after %d", id, last)
		}
	}
}

func TestWhatIsNoSocketIsLeftAlone(t *testing.T) {
	t.Parallel()
	live := newSite(t)
	live.Start()
	for name, put := range map[string]func(path string) error{
		"file":      func(path string) error { return os.WriteFile(path, []byte("precious"), 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link to a socket": func(path string) error {
			return os.Symlink(live.Socket, path)
		},
		"link to nothing": func(path string) error { return os.Symlink(path+"-nothing", path) },
	} {
		s := newSite(t)
		if err := put(s.Socket); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(s.Socket)
		if err != nil {
			t.Fatal(err)
		}
		said := s.Launch().FailsToStart(exitFailure)
		if !strings.Contains(said, s.Socket) || !strings.Contains(said, "not a socket") {
			t.Errorf("%s: it said %q", name, said)
		}
		if after, err := os.Lstat(s.Socket); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: it was replaced: %v", name, err)
		}
		if content, err := os.ReadFile(s.Socket); name == "file" && string(content) != "precious" {
			t.Errorf("the file holds %q now (%v)", content, err)
		}
		if name != "link to a socket" { // which a client may well follow
			s.Kazahanad("id").Fails(t, exitFailure, s.Socket)
		}
	}
	if id := live.Dial().ID(); id == 0 {
		t.Error("the live daemon gave 0")
	}
}

// A socket directory that is missing is made; one that cannot be made is said.
func TestSocketDirectory(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Socket = filepath.Join(s.Dir, "a", "b", "d.sock")
	s.Start()
	s.Dial().ID()
	o := newSite(t)
	testkit.WriteFile(t, o.Path("file"), "")
	o.Socket = filepath.Join(o.Path("file"), "d.sock")
	if said := o.Launch().FailsToStart(exitFailure); !strings.Contains(said, o.Path("file")) {
		t.Errorf("it said %q", said)
	}
}
