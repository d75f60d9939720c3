package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

func TestMain(m *testing.M) { await.Main(m) }

var errAway = errors.New("the store is away")

func logged(level zapcore.Level) (*zap.Logger, *observer.ObservedLogs) {
	core, logs := observer.New(level)
	return zap.New(core), logs
}

// said is the log's only new line, as level, component and message.
func said(t *testing.T, logs *observer.ObservedLogs) string {
	t.Helper()
	all := logs.TakeAll()
	if len(all) != 1 {
		return fmt.Sprintf("%d lines: %v", len(all), all)
	}
	if _, ok := all[0].ContextMap()["key"]; !ok {
		t.Errorf("%s: the line does not name the key: %v", all[0].Message, all[0].ContextMap())
	}
	return fmt.Sprintf("%v %v %v", all[0].Level, all[0].ContextMap()["component"], all[0].Message)
}

// Each event of locks, at its level.
func TestLockEvents(t *testing.T) {
	log, logs := logged(zap.DebugLevel)
	var called []string
	observed := Locks(log, func(op string, _ time.Duration) { called = append(called, op) })
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"acquire", nil, "debug locks lock acquired"},
		{"renew", nil, "debug locks lock renewed"},
		{"release", nil, "debug locks lock released"},
		{"get", nil, "0 lines: []"},
		{"list", nil, "0 lines: []"},
		{"acquire", &lock.HeldError{Key: "k"}, "debug locks lock request refused"},
		{"acquire", &lock.FencedError{}, "debug locks lock request refused"},
		{"renew", lock.ErrExpired, "debug locks lock request refused"},
		{"renew", lock.ErrNotOwned, "debug locks lock request refused"},
		{"acquire", context.Canceled, "debug locks lock request refused"},
		{"acquire", errAway, "error locks failed to acquire lock"},
		{"renew", context.DeadlineExceeded, "error locks failed to renew lock"},
		{"release", errAway, "error locks failed to release lock"},
		{"get", errAway, "error locks failed to read lock"},
		{"list", errAway, "error locks failed to list locks"},
	} {
		observed.After(t.Context(), lock.Operation{Name: c.name, Request: lock.Request{Key: "k"}, Err: c.err})
		if got := said(t, logs); got != c.want {
			t.Errorf("%s, %v: %s, want %s", c.name, c.err, got, c.want)
		}
	}
	if len(called) != 15 || called[0] != "lock_acquire" {
		t.Errorf("told were %v", called)
	}
}

// Each event of sequences, at its level: those of seed 003, section 7.2, and more.
func TestSequenceEvents(t *testing.T) {
	log, logs := logged(zap.DebugLevel)
	observed := Sequences(log)
	for _, c := range []struct {
		name   string
		values int
		err    error
		want   string
	}{
		{"next", 1, nil, "debug sequences generated sequence number"},        // seed 003-7.2-6
		{"next", 5, nil, "debug sequences generated sequence batch"},         // seed 003-7.2-7
		{"next", 0, errAway, "error sequences failed to increment sequence"}, // seed 003-7.2-8
		{"next", 0, context.DeadlineExceeded, "error sequences failed to increment sequence"},
		{"next", 0, sequence.ErrRequestReused, "debug sequences sequence request refused"},
		{"next", 0, &sequence.MismatchError{}, "debug sequences sequence request refused"},
		{"next", 0, context.Canceled, "debug sequences sequence request refused"},
		{"next", 0, &sequence.ExhaustedError{}, "warn sequences sequence hands out nothing"},
		{"next", 0, &sequence.FencedError{}, "warn sequences sequence hands out nothing"},
		{"declare", 0, nil, "info sequences sequence reset"},
		{"declare", 0, errAway, "error sequences failed to reset sequence"}, // seed 003-7.2-9
		{"declare", 0, sequence.ErrInvalid, "debug sequences sequence request refused"},
	} {
		observed.After(t.Context(), sequence.Operation{
			Name: c.name, Request: sequence.Request{Key: "k", Options: sequence.DefaultOptions()}, Answer: sequence.Range{First: 1, Step: 1, Count: c.values}, Err: c.err,
		})
		if got := said(t, logs); got != c.want {
			t.Errorf("%s, %v: %s, want %s", c.name, c.err, got, c.want)
		}
	}
	// The step that failed was to set the TTL and to start the key over, too. Seed 003-7.2-10.
	r := sequence.Request{Key: "k", Options: sequence.Options{TTL: time.Hour}}
	observed.After(t.Context(), sequence.Operation{Name: "next", Request: r, Err: fmt.Errorf("%w: %w", sequence.ErrReset, errAway)})
	var lines []string
	for _, line := range logs.TakeAll() {
		lines = append(lines, fmt.Sprint(line.Level, " ", line.Message))
	}
	if want := []string{"error failed to reset sequence", "warn failed to set ttl", "error failed to increment sequence"}; !slices.Equal(lines, want) {
		t.Errorf("a reset with a TTL that failed is logged as %q, want %q", lines, want)
	}
}

// In an outage every request fails. Some lines tell as much as all.
func TestFailuresAreSparing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, logs := logged(zap.InfoLevel)
		observed := Locks(log, nil)
		fail := func(name string, times int) {
			for range times {
				observed.After(t.Context(), lock.Operation{Name: name, Request: lock.Request{Key: "k"}, Err: errAway})
			}
		}
		fail("acquire", 1000)
		if n := logs.Len(); n != failureBurst {
			t.Errorf("1,000 failures made %d lines", n)
		}
		fail("renew", 1) // of another kind
		if n := logs.Len(); n != failureBurst+1 {
			t.Errorf("a failure of another kind made %d lines", n-failureBurst)
		}
		logs.TakeAll()
		time.Sleep(failurePause)
		fail("acquire", 1000)
		if all := logs.TakeAll(); len(all) != failureBurst {
			t.Errorf("after a pause: %v", all)
		}
	})
}

// An event that is not logged costs nothing: not a byte for a request that goes well, or that
// is refused.
func TestSilenceIsFree(t *testing.T) {
	log, _ := logged(zap.InfoLevel)
	locks, sequences := Locks(log, nil), Sequences(log)
	held := &lock.HeldError{Key: "k"}
	for what, do := range map[string]func(){
		"acquired": func() { locks.After(t.Context(), lock.Operation{Name: "acquire", Request: lock.Request{Key: "k"}}) },
		"held":     func() { locks.After(t.Context(), lock.Operation{Name: "acquire", Err: held}) },
		"a number": func() {
			sequences.After(t.Context(), sequence.Operation{Name: "next", Answer: sequence.Range{First: 1, Step: 1, Count: 1}})
		},
		"a batch": func() {
			sequences.After(t.Context(), sequence.Operation{Name: "next", Answer: sequence.Range{First: 1, Step: 1, Count: 9}})
		},
		"reused": func() {
			sequences.After(t.Context(), sequence.Operation{Name: "next", Err: sequence.ErrRequestReused})
		},
	} {
		if n := testing.AllocsPerRun(200, do); n > 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}
