package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// The doors of a daemon, as doctor finds them.
func TestDoctorDoors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	memcached, http := s.Path("memcached.sock"), s.Path("http.sock")
	configured := []string{"--memcached-listen", "unix:" + memcached, "--http-listen", "unix:" + http}
	s.Examined(nil, configured...).Has("socket.missing", "no door.silent", "no door.answers")

	d := s.Start(configured...)
	s.Examined(nil, configured...).Has("door.answers", "no door.silent")
	// The protocols are not each other's.
	swapped := s.Examined(nil, "--memcached-listen", "unix:"+http, "--http-listen", "unix:"+memcached)
	swapped.Has("door.silent", "no door.answers")
	if swapped.Code != exitFailure {
		t.Errorf("exit code %d", swapped.Code)
	}
	s.Examined(nil, "--memcached-listen", "127.0.0.1:1").Has("door.silent")
	s.Examined(nil, "--http-listen", "192.0.2.1:80", "--insecure").Has("door.not_local", "no door.silent") // of TEST-NET-1
	if os.Geteuid() == 0 {
		must.Succeed(t, os.Chown(http, 65534, -1))
		s.Examined(nil, configured...).Has("door.foreign", "door.answers")
	}
	d.Terminate()

	// Another process has the place, and leaves its socket behind.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: http, Net: "unix"})
	must.Succeed(t, err)
	l.SetUnlinkOnClose(false)
	s.Start()
	must.Succeed(t, l.Close())
	s.Examined(nil, configured...).Has("door.stale", "door.silent")
}

// serve --check finds a directory in which no socket can be made.
func TestServeCheckDoors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	testkit.WriteFile(t, s.Path("file"), "")
	for _, flag := range []string{"--memcached-listen", "--http-listen"} {
		s.Kazahanad("serve", "--check", flag, "unix:"+s.Path("file/d.sock")).Fails(t, exitFailure, "not a directory")
		s.Kazahanad("serve", "--check", flag, "unix:"+s.Path("new/and/newer/d.sock")).OK(t)
	}
	if _, err := os.Stat(s.Path("new")); err == nil {
		t.Error("the check has made a directory")
	}
	closed := s.Path("closed")
	testkit.Mkdir(t, closed)
	must.Succeed(t, os.Chmod(closed, 0o500))
	if os.Geteuid() != 0 { // whom no mode stops
		s.Kazahanad("serve", "--check", "--http-listen", "unix:"+filepath.Join(closed, "d.sock")).Fails(t, exitFailure, "cannot be written")
	}
}
