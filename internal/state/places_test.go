package state

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/folder"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"go.uber.org/zap"
)

func TestLiveDirectoryMustFit(t *testing.T) {
	root := disktest.Memory(t)
	for name, c := range map[string]struct {
		prepare func(path string) error
		text    string
	}{
		"on a disk":         {nil, "is not on a file system in memory"},
		"a file":            {func(path string) error { return os.WriteFile(path, nil, 0o600) }, "not a directory"},
		"open to everybody": {func(path string) error { return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o1777)) }, "every user may write to it"},
		"a dead link":       {func(path string) error { return os.Symlink("nowhere", path) }, "cannot make the directory"},
		"of another user": {func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.Chown(path, 65534, 65534))
		}, "belongs to the user with UID 65534"},
		"a link of another user": {func(path string) error {
			return errors.Join(os.Mkdir(path+"-there", 0o700), os.Symlink(path+"-there", path), os.Lchown(path, 65534, 65534))
		}, "is a symbolic link of the user with UID 65534"},
	} {
		t.Run(name, func(t *testing.T) {
			p := place{filepath.Join(t.TempDir(), "state"), filepath.Join(root, name)}
			if c.prepare == nil {
				p.live = filepath.Join(t.TempDir(), "live")
			} else if err := c.prepare(p.live); errors.Is(err, os.ErrPermission) {
				t.Skip("only root gives a file away")
			} else if err != nil {
				t.Fatal(err)
			}
			_, err := tryOpen(t, p)
			if e, ok := errors.AsType[*FileError](err); !ok || e.Path != p.live || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error is %v, want one about %s with %q", err, p.live, c.text)
			}
			if left := glob(t, p.live, "*"); len(left) > 0 {
				t.Errorf("made: %v", left)
			}
			// The state directory is free again.
			mustOpen(t, place{p.dir, filepath.Join(disktest.Memory(t), "live")})
		})
	}
}

// systemd makes a link for DynamicUser=.
func TestLiveDirectoryBehindALink(t *testing.T) {
	p := newPlace(t)
	there := filepath.Join(disktest.Memory(t), "there")
	must.Succeed(t, errors.Join(os.Mkdir(there, 0o755), os.Symlink(there, p.live)))
	mustSave(t, mustOpen(t, p).service("default"), savedWith(testLease(1, 1)))
}

func TestChooseLive(t *testing.T) {
	memory, disk := disktest.Memory(t), t.TempDir()
	if folder.InMemory(disk) {
		t.Skip("all is in memory here")
	}
	deep := filepath.Join(memory, "not", "there", "yet")
	for _, c := range []struct {
		places []string
		want   string
	}{
		{nil, ""},
		{[]string{disk}, ""},
		{[]string{disk, deep, memory}, deep},
		{[]string{memory, deep}, memory},
		{[]string{filepath.Join(disk, "x"), "/proc/x", memory}, memory},
	} {
		if got := ChooseLive(c.places); got != c.want {
			t.Errorf("%q: %q, want %q", c.places, got, c.want)
		}
	}
}

func TestStateDirectoryThatEverybodyMayWrite(t *testing.T) {
	p := newPlace(t)
	must.Succeed(t, errors.Join(os.Mkdir(p.dir, 0o700), os.Chmod(p.dir, 0o777)))
	s := mustOpen(t, p)
	s.wantSaid(zap.WarnLevel, "every user may write to the state directory")
	mustClose(t, s)
	if err := os.Chown(p.dir, 65534, 65534); err != nil {
		t.Skip("only root gives a directory away")
	}
	_, err := tryOpen(t, p)
	wantFileError(t, err, p.dir, "belongs to another user")
}

// nobody is a user without any right, to be tested against even by root.
func nobody(t *testing.T) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil // then we are such a user ourselves
	}
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		t.Skip("root needs /proc to start the test binary as another user")
	}
	return &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}
}

// ownedPlace is a place of that user, or of this one.
func ownedPlace(t *testing.T, user *syscall.Credential) place {
	t.Helper()
	disk, err := os.MkdirTemp("", "kz-state-test-") // open to others, as t.TempDir is not
	must.Succeed(t, err)
	t.Cleanup(func() { os.RemoveAll(disk) })
	memory := disktest.Memory(t)
	if user != nil {
		for _, dir := range []string{disk, memory} {
			must.Succeed(t, os.Chown(dir, int(user.Uid), int(user.Gid)))
		}
	}
	return place{filepath.Join(disk, "state"), filepath.Join(memory, "live")}
}

func TestWithoutPermission(t *testing.T) {
	ring.All(t)
	user := nobody(t)
	for name, c := range map[string]struct {
		prepare func(p place, folder string) error
		says    string
	}{
		"state directory not writable": {func(p place, _ string) error { return errors.Join(os.Remove(p.disk(lockName)), os.Chmod(p.dir, 0o500)) }, "error: STATE/lock: cannot create it: permission denied; give the user"},
		"lock not writable":            {func(p place, _ string) error { return os.Chmod(p.disk(lockName), 0o400) }, "error: STATE/lock: cannot open it: permission denied; give the user"},
		"state file not readable":      {func(p place, _ string) error { return os.Chmod(p.disk(stateName), 0) }, "error: STATE/state: cannot open it: permission denied; give the user"},
		"state file not writable":      {func(p place, _ string) error { return os.Chmod(p.disk(stateName), 0o400) }, ""}, // it is replaced
		"live directory not writable":  {func(p place, f string) error { return errors.Join(os.RemoveAll(f), os.Chmod(p.live, 0o500)) }, "cannot make the directory: permission denied; give the user"},
		"folder closed":                {func(_ place, f string) error { return os.Chmod(f, 0) }, "cannot open the directory: permission denied; give the user"},
		"marks not writable":           {func(_ place, f string) error { return os.Chmod(filepath.Join(f, marksName), 0o400) }, ""}, // costs the leases
		"leases not readable":          {func(_ place, f string) error { return os.Chmod(filepath.Join(f, leasesName), 0) }, ""},    // likewise
		"nothing":                      {func(place, string) error { return nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := ownedPlace(t, user)
			if said := runChild(t, "try", p, user); said != "" {
				t.Fatal(said)
			}
			folder := p.folder(t)
			must.Succeed(t, c.prepare(p, folder))
			defer os.Chmod(p.dir, 0o700)
			defer os.Chmod(p.live, 0o700)
			said := strings.ReplaceAll(runChild(t, "try", p, user), p.dir, "STATE")
			if c.says == "" && said != "" || !strings.Contains(said, c.says) || strings.Count(said, "\n") > 1 {
				t.Errorf("the user got %q, want %q", said, c.says)
			}
		})
	}
}

// What root makes in another user's directories (sudo kazahanad state ...) belongs
// to that user, who starts the next daemon.
func TestRootWorksForAnotherUser(t *testing.T) {
	user := nobody(t)
	if user == nil {
		t.Skip("this is about root")
	}
	p := ownedPlace(t, user)
	if said := runChild(t, "try", p, user); said != "" {
		t.Fatal(said)
	}
	check := func() {
		t.Helper()
		for _, dir := range []string{p.dir, p.live} {
			for _, pattern := range []string{"*", "*/*"} {
				for _, path := range glob(t, dir, pattern) {
					if info, _ := os.Lstat(path); info.Sys().(*syscall.Stat_t).Uid != user.Uid {
						t.Errorf("%s belongs to root", path)
					}
				}
			}
		}
		if said := runChild(t, "try", p, user); said != "" {
			t.Errorf("the owner got: %s", said)
		}
	}
	for _, prepare := range []func() error{
		func() error { return nil },
		func() error { return os.RemoveAll(p.folder(t)) },
		func() error { return os.RemoveAll(p.live) }, // the machine has booted
		func() error { return os.Remove(p.disk(lockName)) },
	} {
		must.Succeed(t, prepare())
		if _, err := ResetFloor(p.dir, "", resetTo, p.options()); err != nil {
			t.Fatal(err)
		}
		check()
	}
	// A daemon that root starts on them by mistake.
	_, err := tryOpen(t, p)
	wantFileError(t, err, p.live, "belongs to the user with UID")
	check()
}
