package folder

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// The umask belongs to the whole process, so this test has no parallel ones.
func TestMakeUnderAnyUmask(t *testing.T) {
	base := t.TempDir()
	must.Succeed(t, os.Chmod(base, 0o750))
	defer syscall.Umask(syscall.Umask(0o022))
	for _, umask := range []int{0o000, 0o022, 0o027, 0o077} {
		syscall.Umask(umask)
		top := filepath.Join(base, fmt.Sprintf("%03o", umask))
		middle, last := filepath.Join(top, "b"), filepath.Join(top, "b", "c")
		made, err := Make(last, 0o700)
		must.Succeed(t, err)
		if want := []string{top, middle, last}; !slices.Equal(made, want) {
			t.Errorf("made %v, want %v", made, want)
		}
		for path, want := range map[string]fs.FileMode{base: 0o750, top: 0o755, middle: 0o755, last: 0o700} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("umask %03o: %s is %v, want %o", umask, path, info.Mode(), want)
			}
		}
		must.Succeed(t, os.Chmod(last, 0o500)) // as the operator wants it
		made, err = Make(last, 0o755)
		if info, _ := os.Stat(last); err != nil || len(made) != 0 || info.Mode().Perm() != 0o500 {
			t.Errorf("an existing directory: made %v, now %v, %v", made, info.Mode(), err)
		}
	}
	file := filepath.Join(base, "file")
	must.Succeed(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, filepath.Join(file, "x")} {
		if _, err := Make(path, 0o755); err == nil {
			t.Errorf("%s was made", path)
		}
	}
}

// A user who may write to the parent can put a link in the place of a new directory.
func TestSetModeFollowsNoLink(t *testing.T) {
	base := t.TempDir()
	target, link := filepath.Join(base, "target"), filepath.Join(base, "link")
	must.Succeed(t, os.Mkdir(target, 0o700))
	must.Succeed(t, os.Symlink(target, link))
	setMode(link, 0o755)
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory that the link leads to is %v, %v", info.Mode(), err)
	}
}

func TestBarrier(t *testing.T) {
	base := t.TempDir()
	top, below := filepath.Join(base, "top"), filepath.Join(base, "top", "below")
	must.Succeed(t, os.MkdirAll(below, 0o755))
	for dir := base; dir != "/"; dir = filepath.Dir(dir) { // where the test's own directories keep others out
		if info, err := os.Stat(dir); err == nil && info.Mode()&0o001 == 0 {
			must.Succeed(t, os.Chmod(dir, info.Mode().Perm()|0o011))
		}
	}
	mine, other := uint32(os.Getegid()), uint32(54321)
	for _, c := range []struct {
		top, below fs.FileMode
		gid        uint32
		want       string
	}{
		{0o755, 0o755, other, ""},
		{0o711, 0o710, mine, ""},
		{0o711, 0o710, other, below},
		{0o700, 0o755, other, top},
		{0o700, 0o700, mine, top},
		{0o701, 0o755, mine, top}, // the group's bit counts for its members
	} {
		must.Succeed(t, os.Chmod(below, c.below))
		must.Succeed(t, os.Chmod(top, c.top))
		if dir, mode := Barrier(filepath.Join(below, "s"), c.gid); dir != c.want || dir == top && mode != c.top {
			t.Errorf("%o, %o, group %d: %q (%v), want %q", c.top, c.below, c.gid, dir, mode, c.want)
		}
		must.Succeed(t, os.Chmod(top, 0o755))
	}
}
