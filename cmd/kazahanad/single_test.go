package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	first := s.start()
	id := s.dial().id()
	second := elsewhere(t, func(o *site) { o.state = s.state })
	said := second.launch().failsToStart(exitFailure)
	for _, want := range []string{fmt.Sprintf("process %d", first.pid()), s.state, "state_dir"} {
		if !strings.Contains(said, want) {
			t.Errorf("it said %q, want %q in it", said, want)
		}
	}
	if _, err := os.Lstat(second.socket); err == nil {
		t.Error("it made its socket before it had the state directory")
	}
	if next := s.dial().id(); next <= id {
		t.Errorf("the first daemon went from %d to %d", id, next)
	}
	s.kazahanad("state", "reset-floor", "--yes").fails(t, exitFailure, fmt.Sprintf("process %d", first.pid()))
	s.kazahanad("state", "accept-epoch").fails(t, exitFailure, fmt.Sprintf("process %d", first.pid()))
}

func TestSecondDaemonOnOneSocket(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.start()
	id := s.dial().id()
	inUse := fmt.Sprintf("in use by process %d", first.pid())
	for _, c := range []struct {
		name  string
		first func()
	}{
		{"as it is", func() {}},
		// An operator takes it for a left-over.
		{"lock file removed", func() {
			if err := os.Remove(s.socket + ".lock"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		c.first()
		second := elsewhere(t, func(o *site) { o.socket = s.socket })
		said := second.launch().failsToStart(exitFailure)
		if !strings.Contains(said, inUse) || !strings.Contains(said, s.socket) {
			t.Errorf("%s: it said %q, want %q in it", c.name, said, inUse)
		}
		c := s.dial()
		if next := c.id(); next <= id || c.status().PID != first.pid() {
			t.Errorf("the first daemon no longer answers as before: %d after %d", next, id)
		}
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.start()
	last := s.dial().id()
	for range 2 {
		d.kill()
		if info, err := os.Lstat(s.socket); err != nil || info.Mode().Type() != os.ModeSocket {
			t.Fatalf("kill -9 left no socket: %v, %v", info, err)
		}
		s.kazahanad("id").fails(t, exitFailure, s.socket, "no daemon listens", "kazahanad serve")
		d = s.start()
		if id := s.dial().id(); id <= last {
			t.Errorf("%d came after %d", id, last)
		}
	}
}

func TestWhatIsNoSocketIsLeftAlone(t *testing.T) {
	t.Parallel()
	live := newSite(t)
	live.start()
	for name, put := range map[string]func(path string) error{
		"file":      func(path string) error { return os.WriteFile(path, []byte("precious"), 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link to a socket": func(path string) error {
			return os.Symlink(live.socket, path)
		},
		"link to nothing": func(path string) error { return os.Symlink(path+"-nothing", path) },
	} {
		s := newSite(t)
		if err := put(s.socket); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(s.socket)
		if err != nil {
			t.Fatal(err)
		}
		said := s.launch().failsToStart(exitFailure)
		if !strings.Contains(said, s.socket) || !strings.Contains(said, "no socket") {
			t.Errorf("%s: it said %q", name, said)
		}
		if after, err := os.Lstat(s.socket); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: it was replaced: %v", name, err)
		}
		if content, err := os.ReadFile(s.socket); name == "file" && string(content) != "precious" {
			t.Errorf("the file holds %q now (%v)", content, err)
		}
		if name != "link to a socket" { // which a client may well follow
			s.kazahanad("id").fails(t, exitFailure, s.socket)
		}
	}
	if id := live.dial().id(); id == 0 {
		t.Error("the live daemon gave 0")
	}
}

// A socket directory that is missing is made; one that cannot be made is said.
func TestSocketDirectory(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.socket = filepath.Join(s.dir, "a", "b", "d.sock")
	s.start()
	s.dial().id()
	o := newSite(t)
	writeFile(t, o.path("file"), "")
	o.socket = filepath.Join(o.path("file"), "d.sock")
	if said := o.launch().failsToStart(exitFailure); !strings.Contains(said, o.path("file")) {
		t.Errorf("it said %q", said)
	}
}
