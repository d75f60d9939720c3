package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func resetFloor(t *testing.T, p place, service string, ms int64) ([]Floor, error) {
	t.Helper()
	return ResetFloor(p.dir, service, ms, p.options())
}

func acceptTimeline(t *testing.T, p place, service string, decide func(ServiceReport) (snowflake.Timeline, error)) error {
	t.Helper()
	return AcceptTimeline(p.dir, service, p.options(), decide)
}

func TestResetFloor(t *testing.T) {
	p, saved := usedPlace(t)
	s := mustOpen(t, p)
	other := s.service("other")
	mustSave(t, other, savedWith(testLease(4, 4)))
	other.RaiseMark(1_600_000_000_000)
	s.crash()

	if _, err := resetFloor(t, p, "nosuch", resetTo); err == nil || !strings.Contains(err.Error(), "it holds: default, other") {
		t.Errorf("unknown service: %v", err)
	}
	if _, err := resetFloor(t, p, "", 0); err == nil {
		t.Error("no time was accepted")
	}
	floors, err := resetFloor(t, p, "default", resetTo)
	if want := []Floor{{"default", testMark, resetTo}}; err != nil || !reflect.DeepEqual(floors, want) {
		t.Errorf("floors %+v, %v", floors, err)
	}
	s = mustOpen(t, p)
	sv, other := s.service("default"), s.service("other")
	wantState(t, sv, wasReset(saved), resetTo)
	if got := other.Load(); got.leases() != 0 || other.Mark() != 1_600_000_000_000 {
		t.Errorf("the other service: %+v, Mark %d", got, other.Mark())
	}
	s.crash()

	// All services; a mark that is lower is not raised.
	floors, err = resetFloor(t, p, "", resetTo-1)
	want := []Floor{{"default", resetTo, resetTo - 1}, {"other", 1_600_000_000_000, 1_600_000_000_000}}
	if err != nil || !reflect.DeepEqual(floors, want) {
		t.Errorf("floors %+v, %v", floors, err)
	}
}

// After a reset there are IDs that are dated ahead of the mark. No later move of the epoch may
// repeat them.
func TestAcceptAfterAReset(t *testing.T) {
	p, saved := usedPlace(t)
	_, err := resetFloor(t, p, "", resetTo)
	must.Succeed(t, err)
	largest := testTimeline.ID(testMark-1, testTimeline.MaxLow())
	_, err = resetFloor(t, p, "", resetTo-1)
	must.Succeed(t, err)
	if got := serviceOf(t, p).Saved.Largest; got != largest {
		t.Errorf("the largest ID is %d, want %d", got, largest)
	}
	for ahead, ascends := range map[int64]bool{testMark - resetTo: false, testMark - resetTo + 2: true} {
		next := saved.Timeline
		next.EpochMS -= ahead
		if c := serviceOf(t, p).Crossing(next); c.Ascends() != ascends || c.LargestOld != largest {
			t.Errorf("an epoch %d ms earlier: %+v", ahead, c)
		}
	}
	err = AcceptTimeline(p.dir, "default", p.options(), func(ServiceReport) (snowflake.Timeline, error) {
		return snowflake.Timeline{EpochMS: testTimeline.EpochMS - 1, BitTS: 41}, nil
	})
	must.Succeed(t, err)
	if got := serviceOf(t, p).Saved.Largest; got != largest {
		t.Errorf("after a move the largest ID is %d, want %d", got, largest)
	}
}

// wasReset is what ResetFloor leaves of a used place.
func wasReset(saved Saved) Saved {
	saved = saved.withoutLeases()
	saved.Largest = testTimeline.ID(testMark-1, testTimeline.MaxLow())
	return saved
}

// A reset is one write: a directory where that fails is as it was.
func TestChangesThatFail(t *testing.T) {
	p, saved := usedPlace(t)
	blocked := p.disk(stateName + newSuffix)
	must.Succeed(t, os.MkdirAll(filepath.Join(blocked, "x"), 0o700))
	_, err := resetFloor(t, p, "", resetTo)
	wantFileError(t, err, blocked, "left-over")
	err = acceptTimeline(t, p, "default", func(r ServiceReport) (snowflake.Timeline, error) { return *r.Saved.Offered, nil })
	wantFileError(t, err, blocked, "left-over")
	must.Succeed(t, os.RemoveAll(blocked))
	wantAdopted(t, p, saved)
}

// The owner of this daemon's locks is still its own, unless a copy runs in the folder.
func TestOwnerAfterAChange(t *testing.T) {
	for _, copied := range []bool{false, true} {
		p, _ := usedPlace(t)
		s := mustOpen(t, p)
		owner := s.Owner()
		s.crash()
		if copied {
			mustOpen(t, place{copyDir(t, p.dir), p.live})
		}
		_, err := resetFloor(t, p, "", resetTo)
		must.Succeed(t, err)
		if s = mustOpen(t, p); (s.Owner() == owner) == copied {
			t.Errorf("a copy runs: %v; the owner was %s, and is %s", copied, owner, s.Owner())
		}
	}
}

// Without a live directory the marks are in the state directory.
func TestResetFloorWithoutALiveDirectory(t *testing.T) {
	p := place{dir: filepath.Join(t.TempDir(), "state")}
	s := mustOpen(t, p)
	s.service("default").RaiseMark(testMark)
	s.crash()
	_, err := resetFloor(t, p, "", resetTo)
	must.Succeed(t, err)
	if mark := mustOpen(t, p).service("default").Mark(); mark != resetTo {
		t.Errorf("the mark is %d", mark)
	}
}

func serviceOf(t *testing.T, p place) ServiceReport {
	t.Helper()
	report := p.inspect(t)
	if len(report.Services) != 1 {
		t.Fatalf("%+v", report)
	}
	return report.Services[0]
}

func TestMaintenanceNeedsAState(t *testing.T) {
	empty := t.TempDir()
	for _, dir := range []string{empty, filepath.Join(empty, "missing")} {
		p := place{dir, filepath.Join(disktest.Memory(t), "live")}
		_, resetErr := resetFloor(t, p, "", resetTo)
		_, inspectErr := Inspect(p.dir, p.options())
		for name, err := range map[string]error{
			"ResetFloor": resetErr, "Inspect": inspectErr, "AcceptTimeline": acceptTimeline(t, p, "default", nil),
		} {
			if e, ok := errors.AsType[*FileError](err); !ok || e.Path != dir {
				t.Errorf("%s: %v", name, err)
			}
		}
		if left := glob(t, filepath.Dir(p.live), "*"); len(left) != 0 {
			t.Errorf("made: %v", left)
		}
	}
	if left := glob(t, empty, "*"); len(left) != 0 {
		t.Errorf("made: %v", left)
	}
}

// The live directory is not there: after a boot, or because the command runs
// outside the daemon's container. Dropped leases do not come back when it is there again.
func TestMaintenanceWithoutTheLiveDirectory(t *testing.T) {
	next := snowflake.Timeline{EpochMS: 5, BitTS: 42}
	for name, maintain := range map[string]func(t *testing.T, p place) error{
		"reset-floor": func(t *testing.T, p place) error { _, err := resetFloor(t, p, "", resetTo); return err },
		"accept-epoch": func(t *testing.T, p place) error {
			return acceptTimeline(t, p, "default", func(ServiceReport) (snowflake.Timeline, error) { return next, nil })
		},
	} {
		for _, backAgain := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				p, saved := usedPlace(t)
				disktest.Run(t, "mv", p.live, p.live+"x")
				must.Succeed(t, maintain(t, p))
				if left := glob(t, p.dir, "*"); len(left) != 2 {
					t.Errorf("the state directory holds %v", left)
				}
				if _, err := os.Stat(p.live); err == nil {
					t.Error("a live directory was made")
				}
				if backAgain {
					disktest.Run(t, "mv", p.live+"x", p.live)
				}
				s := mustOpen(t, p)
				sv := s.service("default")
				want, mark := wasReset(saved), resetTo
				if name == "accept-epoch" {
					want, mark = Saved{Timeline: next, Source: SourceLease, Largest: wasReset(saved).Largest}, testMark
				}
				wantState(t, sv, want, mark)
				s.wantQuiet()
			})
		}
	}
}

// A life that ended while it moved to another timeline leaves both, and the next one goes on with
// the one with the larger IDs, also after a boot.
func TestMoveIsSettled(t *testing.T) {
	later, earlier := testTimeline, testTimeline
	later.EpochMS += 1000
	earlier.EpochMS -= 1000
	for name, c := range map[string]struct {
		next snowflake.Timeline
		mark int64
		want Saved
	}{
		"larger IDs":    {earlier, testMark, Saved{Timeline: earlier, Source: SourceLease}},
		"smaller IDs":   {later, testMark, Saved{Timeline: testTimeline, Source: SourceConfig}},
		"no IDs so far": {later, 0, Saved{Timeline: later, Source: SourceLease}},
	} {
		for _, boots := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", a boot: ", boots), func(t *testing.T) {
				p := newPlace(t)
				s := mustOpen(t, p)
				sv := s.service("default")
				if c.mark > 0 {
					sv.RaiseMark(c.mark)
				}
				mustSave(t, sv, Saved{Timeline: c.next, Source: SourceLease, From: &testTimeline})
				must.Succeed(t, s.Sync())
				s.crash()
				if boots {
					must.Succeed(t, os.RemoveAll(p.live))
				}
				wantState(t, mustOpen(t, p).service("default"), c.want, c.mark)
			})
		}
	}
}

func TestAcceptTimeline(t *testing.T) {
	p, saved := usedPlace(t)
	refused := errors.New("refused")
	err := acceptTimeline(t, p, "default", func(r ServiceReport) (snowflake.Timeline, error) {
		if r.Mark != testMark || !reflect.DeepEqual(r.Saved, saved.withoutLeases()) {
			t.Errorf("decide was given %+v", r)
		}
		return snowflake.Timeline{}, refused
	})
	if !errors.Is(err, refused) {
		t.Errorf("error is %v", err)
	}
	wantAdopted(t, p, saved)
	if err := acceptTimeline(t, p, "nosuch", nil); err == nil || !strings.Contains(err.Error(), "it holds: default") {
		t.Errorf("unknown service: %v", err)
	}
	offered := func(r ServiceReport) (snowflake.Timeline, error) { return *r.Saved.Offered, nil }

	must.Succeed(t, acceptTimeline(t, p, "default", offered))
	got := serviceOf(t, p)
	if want := (Saved{Timeline: *saved.Offered, Source: SourceLease, Largest: wasReset(saved).Largest}); !reflect.DeepEqual(got.Saved, want) || got.Mark != testMark {
		t.Errorf("afterwards: %+v", got)
	}
	// It is on the disk as well.
	must.Succeed(t, os.RemoveAll(p.live))
	if got := mustOpen(t, p).service("default").Load(); got.Timeline != *saved.Offered {
		t.Errorf("after a boot: %+v", got)
	}
}

func TestInspect(t *testing.T) {
	p, saved := usedPlace(t)
	folder := p.folder(t)
	before, liveBefore := contentsOf(t, p.dir), contentsOf(t, folder)
	report := p.inspect(t)
	if got := report.Services[0]; !reflect.DeepEqual(got.Saved, saved.withoutSecrets()) || got.Mark != testMark || got.Floor != testMark {
		t.Errorf("report: %+v", got)
	}
	if report.Dir != p.dir || report.Live != folder || report.Missing || report.Holder != nil || report.Refusal != "" || filepath.Base(folder) != report.Identity {
		t.Errorf("report: %+v", report)
	}
	if !reflect.DeepEqual(contentsOf(t, p.dir), before) || !reflect.DeepEqual(contentsOf(t, folder), liveBefore) {
		t.Error("a file was changed")
	}
	wantAdopted(t, p, saved) // looking costs nothing

	// While a daemon works: always a consistent, present view.
	s := mustOpen(t, p)
	sv := s.service("default")
	for v := range int64(20) {
		saved.Held[0].Created = v
		mustSave(t, sv, saved)
		sv.RaiseMark(testMark + 100 + v)
		got := serviceOf(t, p)
		if got.Saved.Held[0].Created != v || got.Mark != testMark+100+v {
			t.Fatalf("report: %+v", got)
		}
	}
	report, err := Inspect(p.dir, optionsOf("", "")) // no live directory is named: it is the daemon's
	if err != nil || report.Live != folder || report.Holder == nil || report.Holder.PID != os.Getpid() || report.Refusal != "" {
		t.Errorf("report: %+v, %v", report, err)
	}
	s.crash()

	// After a boot the state file still says something.
	must.Succeed(t, os.RemoveAll(p.live))
	report = p.inspect(t)
	if got := report.Services[0]; !report.Missing || got.Mark != testMark || got.Saved.Timeline != saved.Timeline || got.Saved.leases() != 0 {
		t.Errorf("report: %+v", report)
	}
}

func TestCheckSaysWhetherItWasUsed(t *testing.T) {
	p, _ := usedPlace(t)
	if used, err := Check(p.dir, p.live, os.Geteuid()); !used || err != nil {
		t.Errorf("%v, %v", used, err)
	}
	for _, dir := range []string{t.TempDir(), filepath.Join(p.dir, "missing")} {
		if used, err := Check(dir, "", os.Geteuid()); used || err != nil {
			t.Errorf("%s: %v, %v", dir, used, err)
		}
	}
}

// Against the definition, on timelines small enough to try every ID.
func TestCrossTimelines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) snowflake.Timeline {
			return snowflake.Timeline{EpochMS: rapid.Int64Range(0, 30).Draw(t, label), BitTS: rapid.IntRange(1, 5).Draw(t, label+" bits")}
		}
		old, next := draw("old"), draw("next")
		mark := rapid.Int64Range(0, 70).Draw(t, "mark") // 0 is "no ID yet"
		var want Crossing
		for ms := range int64(200) {
			if ms < mark && old.Contains(ms) {
				want.HasOld, want.LargestOld = true, max(want.LargestOld, old.ID(ms, old.MaxLow()))
			}
			if ms >= mark && next.Contains(ms) && !want.HasNew {
				want.HasNew, want.SmallestNew = true, next.ID(ms, 0)
			}
		}
		got := CrossTimelines(old, next, mark)
		ascends := want.HasNew && (!want.HasOld || want.SmallestNew > want.LargestOld)
		if got != want || got.Ascends() != ascends {
			t.Fatalf("old %+v, next %+v, mark %d: got %+v, want %+v, ascends: %v", old, next, mark, got, want, ascends)
		}
	})
}
