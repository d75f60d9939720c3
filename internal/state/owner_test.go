package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"go.uber.org/zap"
)

// Programs that hold locks outlive the daemon, and so does the owner: in this boot, and in
// this directory. Each copy has an owner of its own, while the original runs and afterwards.
func TestOwner(t *testing.T) {
	unread := Identity{"machine a", ""}
	elsewhere := func(t *testing.T, p place) place { return place{p.dir, filepath.Join(disktest.Memory(t), "live")} }
	for name, c := range map[string]struct {
		change func(*testing.T, place) place
		then   Identity // zero: the present one
		now    Identity
		other  bool
	}{
		"a restart":              {},
		"another machine ID":     {now: Identity{"machine b", "boot a"}}, // of a container's new image
		"the live state is gone": {change: func(t *testing.T, p place) place { must.Succeed(t, os.RemoveAll(p.live)); return p }},
		"another live_dir":       {change: elsewhere, other: true}, // begins under a new identity
		"no live_dir any more":   {change: func(_ *testing.T, p place) place { return place{p.dir, ""} }, other: true},
		"moved": {change: func(t *testing.T, p place) place {
			must.Succeed(t, os.Rename(p.dir, p.dir+".moved"))
			return place{p.dir + ".moved", p.live}
		}},
		"its lock was removed": {change: func(t *testing.T, p place) place { must.Succeed(t, os.Remove(p.disk(lockName))); return p }},
		"a boot":               {now: Identity{"machine a", "boot b"}, other: true},
		"a boot without an ID": {then: unread, now: unread, other: true},
		"a copy":               {change: func(t *testing.T, p place) place { return place{copyDir(t, p.dir), p.live} }, other: true},
		"a copy in its place": {change: func(t *testing.T, p place) place {
			must.Succeed(t, os.Rename(p.dir, p.dir+".old"))
			disktest.Run(t, "cp", "-a", p.dir+".old", p.dir)
			return p
		}, other: true},
		"a state that was removed": {change: func(t *testing.T, p place) place { must.Succeed(t, os.Remove(p.disk(stateName))); return p }, other: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := inMemory(t)
			is := func(i Identity) func(*Options) {
				if i == (Identity{}) {
					i = Identity{"machine a", "boot a"}
				}
				return identity(i)
			}
			first := mustOpen(t, p, is(c.then))
			first.crash()
			if c.change != nil {
				p = c.change(t, p)
			}
			next := mustOpen(t, p, is(c.now))
			if c.now == unread {
				next.wantSaid(zap.WarnLevel, "the boot ID of this host cannot be read")
			}
			if (next.Owner() != first.Owner()) != c.other {
				t.Errorf("the owner was %s, and is %s", first.Owner(), next.Owner())
			}
			next.crash()
			if last := mustOpen(t, p, is(c.now)); (last.Owner() == next.Owner()) != (c.now != unread) {
				t.Errorf("at the next start the owner was %s, and is %s", next.Owner(), last.Owner())
			}
		})
	}
}

// Two daemons on a host have two owners, and each keeps its own while it runs.
func TestOwnersOfLivingDaemonsDiffer(t *testing.T) {
	p := inMemory(t)
	one := mustOpen(t, p)
	host, err := os.Hostname()
	must.Succeed(t, err)
	if name, random, _ := strings.Cut(one.Owner(), "+"); len(random) != 16 || !strings.HasPrefix(host, name[:1]) {
		t.Errorf("on the host %s the owner is %s", host, one.Owner())
	}
	copied := mustOpen(t, place{copyDir(t, p.dir), p.live})
	owners := map[string]bool{
		one.Owner(): true, copied.Owner(): true, mustOpen(t, inMemory(t)).Owner(): true,
		Ephemeral(Options{}).Owner(): true, Ephemeral(Options{}).Owner(): true,
	}
	if len(owners) != 5 {
		t.Errorf("%v", owners)
	}
}

// alike is a directory on a file system that shows a volume and its snapshot with the same
// device and inodes, as virtiofs and 9p can.
type alike struct{ Dir }

func (d alike) Identify(name string) (FileID, error) {
	if name == "." {
		return FileID{Device: 1, Inode: 1}, nil
	}
	return d.Dir.Identify(name)
}

func TestOwnerOfACopyThatLooksLikeTheOriginal(t *testing.T) {
	open := func(p place) *testState {
		disk, err := openStateDir(p.dir, true, os.Geteuid())
		must.Succeed(t, err)
		live, err := openLiveDir(p.live, true, os.Geteuid())
		must.Succeed(t, err)
		s := &testState{t: t}
		s.State, err = OpenOn(t.Context(), alike{disk}, live, s.options(p))
		must.Succeed(t, err)
		t.Cleanup(func() {
			if !s.closed {
				s.crash()
			}
		})
		return s
	}
	p := inMemory(t)
	one := open(p)
	copied := place{copyDir(t, p.dir), p.live}
	two := open(copied)
	if one.Owner() == two.Owner() {
		t.Errorf("the original and its copy are %s", one.Owner())
	}
	owner := two.Owner()
	two.crash()
	if again := open(copied); again.Owner() != owner {
		t.Errorf("at its next start the copy is %s, and was %s", again.Owner(), owner)
	}
}
