package state

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// meddled is a directory whose folder is changed by somebody else when its marks are mapped
// for writing.
type meddled struct {
	Dir
	meddle func(folder string)
}

func (d meddled) Sub(name string, create bool) (Dir, error) {
	sub, err := d.Dir.Sub(name, create)
	return meddled{sub, d.meddle}, err
}

func (d meddled) Map(name string, writable bool) (*Mapping, error) {
	m, err := d.Dir.Map(name, writable)
	if writable {
		d.meddle(d.Path())
	}
	return m, err
}

// TestMarksReplacedDuringAStart: somebody puts an older copy of the marks back while a daemon
// starts. Nothing goes on below its marks, now or after a crash.
func TestMarksReplacedDuringAStart(t *testing.T) {
	for name, putBack := range map[string]func(older []byte, marks string) error{
		"under their name": func(older []byte, marks string) error {
			if err := os.WriteFile(marks+"2", older, 0o600); err != nil {
				return err
			}
			return os.Rename(marks+"2", marks)
		},
		"in place": func(older []byte, marks string) error {
			f, err := os.OpenFile(marks, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.Write(older)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			s := mustOpen(t, p)
			sv := s.service("default")
			mustSave(t, sv, savedWith(testLease(3, 1000)))
			sv.RaiseMark(testMark - 1000)
			must.Succeed(t, s.Sync()) // the floor stays there
			older, err := os.ReadFile(filepath.Join(p.folder(t), marksName))
			must.Succeed(t, err)
			sv.RaiseMark(testMark)
			s.crash()

			disk, err := openStateDir(p.dir, false, p.options().withLog().Log)
			must.Succeed(t, err)
			base, err := openLiveDir(p.live, disk)
			must.Succeed(t, err)
			opts := (&testState{t: t}).options(p)
			started, err := OpenOn(context.Background(), disk, meddled{base, func(folder string) {
				must.Succeed(t, putBack(older, filepath.Join(folder, marksName)))
			}}, opts)
			must.Succeed(t, err)
			s = &testState{State: started, t: t}
			sv = s.service("default")
			if mark := sv.Mark(); mark != testMark {
				t.Errorf("the daemon goes on from %d, want %d", mark, testMark)
			}
			sv.RaiseMark(testMark + 1000)
			s.crash()

			sv = mustOpen(t, p).service("default")
			if mark, n := sv.Mark(), sv.Load().leases(); n > 0 && mark < testMark+1000 {
				t.Errorf("after a crash %d leases are adopted, and IDs go on from %d: up to %d some were made", n, mark, testMark+1000)
			}
		})
	}
}

// TestTimelineOfARefusedFile: the state directory is full, so that only the live state has the
// timeline that the service has moved to. Its leases are not adopted, and IDs go on on the
// timeline whose IDs are greater. A file that is older than the state directory does not count.
func TestTimelineOfARefusedFile(t *testing.T) {
	earlier := testTimeline // with greater IDs
	earlier.EpochMS -= 1000
	for name, c := range map[string]struct{ disk, live, want snowflake.Timeline }{
		"moved on a full disk": {testTimeline, earlier, earlier},
		"an older folder":      {earlier, testTimeline, earlier},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			s := mustOpen(t, p)
			sv := s.service("default")
			mustSave(t, sv, Saved{Timeline: c.disk, Source: SourceLease})
			sv.RaiseMark(testMark)
			must.Succeed(t, s.Sync())
			onDisk, err := os.ReadFile(p.disk(stateName))
			must.Succeed(t, err)
			mustSave(t, sv, Saved{Timeline: c.live, Source: SourceLease})
			folder := p.folder(t)
			s.crash()
			must.Succeed(t, os.WriteFile(p.disk(stateName), onDisk, 0o600))
			tick(t)
			must.Succeed(t, os.Chmod(filepath.Join(folder, marksName), 0o640))

			sv = mustOpen(t, p).service("default")
			wantState(t, sv, Saved{Timeline: c.want, Source: SourceLease}, testMark)
		})
	}
}
