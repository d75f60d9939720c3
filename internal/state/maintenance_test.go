package state

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/snowflake"
)

const resetTo = int64(1_700_000_000_000)

func TestResetFloor(t *testing.T) {
	dir, saved := newState(t)
	s := mustOpen(t, dir, testOptions())
	other := mustService(t, s, "other")
	mustSave(t, other, savedWith(testLease(4, 4)))
	other.RaiseMark(1_600_000_000_000)
	mustClose(t, s)

	if _, err := ResetFloor(dir, "nosuch", resetTo, testOptions()); err == nil || !strings.Contains(err.Error(), "it holds: default, other") {
		t.Errorf("unknown service: %v", err)
	}
	if _, err := ResetFloor(dir, "", 0, testOptions()); err == nil {
		t.Error("no time was accepted")
	}
	floors, err := ResetFloor(dir, "default", resetTo, testOptions())
	if want := []Floor{{"default", 1_800_000_000_000, resetTo, 3}}; err != nil || !reflect.DeepEqual(floors, want) {
		t.Errorf("floors %+v, %v", floors, err)
	}
	s = mustOpen(t, dir, testOptions())
	sv, other := mustService(t, s, "default"), mustService(t, s, "other")
	if got := sv.Load(); !reflect.DeepEqual(got, saved.withoutLeases()) || sv.Mark() != resetTo {
		t.Errorf("Load gives %+v, Mark %d", got, sv.Mark())
	}
	if got := other.Load(); got.leases() != 1 || other.Mark() != 1_600_000_000_000 {
		t.Errorf("the other service: %+v, Mark %d", got, other.Mark())
	}
	mustClose(t, s)

	// All services; a mark that is lower is not raised.
	floors, err = ResetFloor(dir, "", resetTo-1, testOptions())
	want := []Floor{{"default", resetTo, resetTo - 1, 0}, {"other", 1_600_000_000_000, 1_600_000_000_000, 1}}
	if err != nil || !reflect.DeepEqual(floors, want) {
		t.Errorf("floors %+v, %v", floors, err)
	}
}

// The leases are gone before the mark goes down.
func TestResetFloorOrder(t *testing.T) {
	dir, _ := newState(t)
	seen := false
	_, err := resetFloor(dir, "", resetTo, testOptions(), func() {
		seen = true
		if s := stateOf(t, dir); s.Saved.leases() != 0 || s.Mark != 1_800_000_000_000 {
			t.Errorf("in between: %+v", s)
		}
	})
	if err != nil || !seen {
		t.Errorf("%v, seen: %v", err, seen)
	}
	if s := stateOf(t, dir); s.Saved.leases() != 0 || s.Mark != resetTo {
		t.Errorf("afterwards: %+v", s)
	}
}

func stateOf(t *testing.T, dir string) ServiceReport {
	t.Helper()
	report, err := Inspect(dir, testOptions())
	if err != nil || len(report.Services) != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	return report.Services[0]
}

// What the error about missing marks tells to do helps.
func TestResetFloorMakesUpForLostMarks(t *testing.T) {
	dir, saved := newState(t)
	s := mustOpen(t, dir, testOptions())
	mustSave(t, mustService(t, s, "other"), savedWith(testLease(4, 4)))
	mustClose(t, s)
	marks := filepath.Join(dir, marksName)
	if err := os.Remove(marks); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, testOptions())
	wantFileError(t, err, marks, "reset-floor")
	err = AcceptTimeline(dir, "default", testOptions(), nil)
	wantFileError(t, err, marks, "reset-floor")

	floors, err := ResetFloor(dir, "default", resetTo, testOptions())
	if want := []Floor{{"default", 0, resetTo, 3}}; err != nil || !reflect.DeepEqual(floors, want) {
		t.Errorf("floors %+v, %v", floors, err)
	}
	_, err = Open(dir, testOptions()) // the other service has still lost its floor
	wantFileError(t, err, marks, `no entry for service "other"`)
	if _, err = ResetFloor(dir, "", resetTo, testOptions()); err != nil {
		t.Error(err)
	}
	s = mustOpen(t, dir, testOptions())
	for _, name := range []string{"default", "other"} {
		sv := mustService(t, s, name)
		if got := sv.Load(); got.leases() != 0 || got.Timeline != saved.Timeline || sv.Mark() != resetTo {
			t.Errorf("%s: %+v, Mark %d", name, got, sv.Mark())
		}
	}
}

func TestMaintenanceNeedsAState(t *testing.T) {
	empty := t.TempDir()
	missing := filepath.Join(empty, "missing")
	for _, dir := range []string{empty, missing} {
		for name, err := range map[string]error{
			"ResetFloor":     second(ResetFloor(dir, "", resetTo, testOptions())),
			"AcceptTimeline": AcceptTimeline(dir, "default", testOptions(), nil),
			"Inspect":        second(Inspect(dir, testOptions())),
		} {
			var e *FileError
			if !errors.As(err, &e) || e.Path != dir {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if left := glob(t, empty, "*"); len(left) != 0 {
		t.Errorf("made: %v", left)
	}
}

func second[T any](_ T, err error) error { return err }

func TestAcceptTimeline(t *testing.T) {
	dir, saved := newState(t)
	refused := errors.New("refused")
	err := AcceptTimeline(dir, "default", testOptions(), func(r ServiceReport) (snowflake.Timeline, error) {
		if r.Mark != 1_800_000_000_000 || !reflect.DeepEqual(r.Saved, saved.withoutSecrets()) {
			t.Errorf("decide was given %+v", r)
		}
		return snowflake.Timeline{}, refused
	})
	if !errors.Is(err, refused) {
		t.Errorf("error is %v", err)
	}
	wantAdopted(t, dir, testOptions(), saved)
	if err := AcceptTimeline(dir, "nosuch", testOptions(), nil); err == nil || !strings.Contains(err.Error(), "it holds: default") {
		t.Errorf("unknown service: %v", err)
	}
	err = AcceptTimeline(dir, "default", testOptions(), func(r ServiceReport) (snowflake.Timeline, error) {
		return *r.Saved.Offered, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := stateOf(t, dir)
	if want := (Saved{Timeline: *saved.Offered, Source: SourceLease}); !reflect.DeepEqual(got.Saved, want) || got.Mark != 1_800_000_000_000 {
		t.Errorf("afterwards: %+v", got)
	}
}

func TestInspect(t *testing.T) {
	dir, saved := newState(t)
	before := contentsOf(t, dir)
	got := stateOf(t, dir)
	if !reflect.DeepEqual(got.Saved, saved.withoutSecrets()) || got.Mark != 1_800_000_000_000 {
		t.Errorf("report: %+v", got)
	}
	for file, content := range before {
		if contentsOf(t, dir)[file] != content {
			t.Errorf("%s was changed", file)
		}
	}

	// While a daemon works: always a consistent, present view.
	s := mustOpen(t, dir, testOptions())
	sv := mustService(t, s, "default")
	for v := range int64(20) {
		saved.Held[0].Created = v
		mustSave(t, sv, saved)
		sv.RaiseMark(1_900_000_000_000 + v)
		got := stateOf(t, dir)
		if got.Saved.Held[0].Created != v || got.Mark != 1_900_000_000_000+v {
			t.Fatalf("report: %+v", got)
		}
	}
	report, err := Inspect(dir, optionsOf("", ""))
	if err != nil || report.Dir != dir || report.Holder == nil || report.Holder.PID != os.Getpid() || report.Refusal != "" {
		t.Errorf("report: %+v, %v", report, err)
	}
	mustClose(t, s)

	// Marks alone still say something.
	if err := os.Remove(filepath.Join(dir, databaseName)); err != nil {
		t.Fatal(err)
	}
	if got := stateOf(t, dir); got.Mark != 1_900_000_000_019 || !reflect.DeepEqual(got.Saved, Saved{}) {
		t.Errorf("report: %+v", got)
	}
}

func TestCrossTimelines(t *testing.T) {
	old := snowflake.DefaultTimeline()
	mark := old.EpochMS + 1000
	for name, c := range map[string]struct {
		next    snowflake.Timeline
		mark    int64
		hasOld  bool
		hasNew  bool
		ascends bool
	}{
		"earlier epoch":            {snowflake.Timeline{EpochMS: old.EpochMS - 1, BitTS: 41}, mark, true, true, true},
		"the same":                 {old, mark, true, true, true},
		"one millisecond later":    {snowflake.Timeline{EpochMS: old.EpochMS + 1, BitTS: 41}, mark, true, true, false},
		"fewer bits of time":       {snowflake.Timeline{EpochMS: old.EpochMS, BitTS: 40}, mark, true, true, true},
		"more bits of time":        {snowflake.Timeline{EpochMS: old.EpochMS, BitTS: 42}, mark, true, true, false},
		"begins in the future":     {snowflake.Timeline{EpochMS: mark + 1, BitTS: 41}, mark, true, true, false},
		"ended already":            {snowflake.Timeline{EpochMS: 0, BitTS: 10}, mark, true, false, false},
		"no ID was ever made":      {snowflake.Timeline{EpochMS: old.EpochMS + 1, BitTS: 41}, 0, false, true, true},
		"mark at the old epoch":    {snowflake.Timeline{EpochMS: old.EpochMS + 1, BitTS: 41}, old.EpochMS, false, true, true},
		"mark just after it":       {snowflake.Timeline{EpochMS: old.EpochMS + 1, BitTS: 41}, old.EpochMS + 1, true, true, false},
		"mark beyond the old time": {old, old.EndMS() + 5, true, false, false},
	} {
		got := CrossTimelines(old, c.next, c.mark)
		if got.HasOld != c.hasOld || got.HasNew != c.hasNew || got.Ascends() != c.ascends {
			t.Errorf("%s: %+v, ascends: %v", name, got, got.Ascends())
		}
	}
}

// Against the definition, on timelines small enough to try every ID.
func TestCrossTimelinesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) snowflake.Timeline {
			return snowflake.Timeline{EpochMS: rapid.Int64Range(0, 30).Draw(t, label), BitTS: rapid.IntRange(1, 5).Draw(t, label+" bits")}
		}
		old, next := draw("old"), draw("next")
		mark := rapid.Int64Range(1, 70).Draw(t, "mark") // 0 is "no ID yet"
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
		if got != want {
			t.Fatalf("old %+v, next %+v, mark %d: got %+v, want %+v", old, next, mark, got, want)
		}
	})
}
