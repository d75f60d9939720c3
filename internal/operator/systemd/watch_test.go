package systemd

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

const interval = 20 * time.Second

// worker is a part: a loop that takes a turn when it is prodded, or by itself.
type worker struct {
	turns atomic.Uint64
	stuck atomic.Bool
}

func (w *worker) turn() {
	if !w.stuck.Load() {
		w.turns.Add(1)
	}
}

func (w *worker) part(name string) Part { return Part{Name: name, Turns: w.turns.Load, Prod: w.turn} }

// manager is the service manager, as far as it listens.
type manager struct {
	mu    sync.Mutex
	heard []string
	fed   []time.Time
}

func (m *manager) notify(assignments ...string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard = append(m.heard, assignments...)
	if slices.Contains(assignments, alive) {
		m.fed = append(m.fed, time.Now())
	}
	return true, nil
}

// starved is how long ago the watchdog was fed.
func (m *manager) starved() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.fed) == 0 {
		return 1 << 62
	}
	return time.Since(m.fed[len(m.fed)-1])
}

func (m *manager) statuses() (all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.heard {
		if line, ok := strings.CutPrefix(a, "STATUS="); ok {
			all = append(all, line)
		}
	}
	return all
}

// watched runs a Watch in a bubble while do looks at its messages.
func watched(t *testing.T, w Watch, do func(m *manager, log *observer.ObservedLogs)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &manager{}
		core, log := observer.New(zapcore.InfoLevel)
		if w.Status == nil {
			w.Status = func() string { return "" }
		}
		w.Notify, w.Log = m.notify, zap.New(core)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(ctx)
		}()
		do(m, log)
		stop()
		<-done
	})
}

// TestWatchdogIsFedWhileEverythingTurns: never is the manager left without word
// for as long as half the interval.
func TestWatchdogIsFedWhileEverythingTurns(t *testing.T) {
	var accept, keeper worker
	watched(t, Watch{Watchdog: interval, Parts: []Part{accept.part("accept loop"), keeper.part("keeper")}}, func(m *manager, log *observer.ObservedLogs) {
		for range 600 {
			time.Sleep(time.Second)
			synctest.Wait()
			if gone := m.starved(); gone > interval/2 {
				t.Fatalf("not fed for %v", gone)
			}
		}
		if log.Len() > 0 {
			t.Errorf("log: %v", log.All())
		}
	})
}

// TestStuckPartStarvesTheWatchdog: one part that stands still is enough, whichever
// it is, and the log names it once. When it goes on, feeding does too.
func TestStuckPartStarvesTheWatchdog(t *testing.T) {
	for _, which := range []string{"accept loop", "event loop", "keeper"} {
		t.Run(which, func(t *testing.T) {
			workers := map[string]*worker{"accept loop": {}, "event loop": {}, "keeper": {}}
			var parts []Part
			for name, w := range workers {
				parts = append(parts, w.part(name))
			}
			watched(t, Watch{Watchdog: interval, Parts: parts}, func(m *manager, log *observer.ObservedLogs) {
				time.Sleep(interval)
				workers[which].stuck.Store(true)
				time.Sleep(3 * interval)
				synctest.Wait()
				if gone := m.starved(); gone < 2*interval {
					t.Errorf("the watchdog was fed %v ago", gone)
				}
				if all := log.All(); len(all) != 1 || all[0].ContextMap()["stuck"] != which {
					t.Errorf("log: %v", all)
				}
				workers[which].stuck.Store(false)
				time.Sleep(interval / 2)
				synctest.Wait()
				if gone := m.starved(); gone > interval/2 {
					t.Errorf("it goes on, and the watchdog was last fed %v ago", gone)
				}
			})
		})
	}
}

// A part with turns that take long by their nature is given its time.
func TestPatienceOfAPart(t *testing.T) {
	var keeper worker
	part := keeper.part("keeper")
	part.Patience = 10 * interval
	keeper.stuck.Store(true)
	watched(t, Watch{Watchdog: interval, Parts: []Part{part}}, func(m *manager, _ *observer.ObservedLogs) {
		time.Sleep(10*interval - maxTick)
		synctest.Wait()
		if gone := m.starved(); gone > interval/2 {
			t.Errorf("within its patience, and last fed %v ago", gone)
		}
		time.Sleep(2 * interval)
		synctest.Wait()
		if gone := m.starved(); gone < interval {
			t.Errorf("beyond its patience, and fed %v ago", gone)
		}
	})
}

// TestStuckStatusStarvesTheWatchdog: the status is asked of the process's own
// locks. A lock that is never given back stops the feeding too.
func TestStuckStatusStarvesTheWatchdog(t *testing.T) {
	lock := sync.OnceValue(func() chan struct{} { return make(chan struct{}, 1) }) // made in the bubble
	status := func() string {
		lock() <- struct{}{}
		defer func() { <-lock() }()
		return "fine"
	}
	watched(t, Watch{Watchdog: interval, Status: status}, func(m *manager, _ *observer.ObservedLogs) {
		time.Sleep(interval)
		synctest.Wait()
		if gone := m.starved(); gone > interval/2 {
			t.Fatalf("last fed %v ago", gone)
		}
		lock() <- struct{}{}
		time.Sleep(2 * interval)
		synctest.Wait()
		if gone := m.starved(); gone < interval {
			t.Errorf("fed %v ago with a lock that is held", gone)
		}
		<-lock()
	})
}

// TestStoppedMachineBlamesNobody: a part that did not run cannot have taken turns.
func TestStoppedMachineBlamesNobody(t *testing.T) {
	var w worker
	now := time.Unix(1e9, 0)
	p := NewProgress(interval, []Part{w.part("loop")}, now)
	w.stuck.Store(true) // the prod before the stop is not answered yet
	for range 5 {
		now = now.Add(24 * time.Hour)
		if stuck := p.Check(now); stuck != nil {
			t.Fatalf("blamed for a stop of all: %v", stuck)
		}
	}
}

// TestProgressAgainstAModel: a part is stuck when, and only when, the checks
// since its last turn account for more than its patience.
func TestProgressAgainstAModel(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var w worker
		part := Part{Name: "loop", Turns: w.turns.Load, Patience: time.Duration(random.IntN(20)+1) * time.Second}
		now := time.Unix(1e9, 0)
		p := NewProgress(interval, []Part{part}, now)
		silent := time.Duration(0)
		for range 100 {
			step := time.Duration(random.IntN(3000)) * time.Millisecond
			now = now.Add(step)
			silent += min(step, 2*maxTick)
			if random.IntN(8) == 0 {
				w.turns.Add(1)
				silent = 0
			}
			if got, want := len(p.Check(now)) > 0, silent > part.Patience; got != want {
				t.Fatalf("silent for %v of %v: stuck is %v", silent, part.Patience, got)
			}
		}
	}
}

// The status is told when it changes, and not over and over.
func TestStatusIsToldWhenItChanges(t *testing.T) {
	var line atomic.Value
	line.Store("starting")
	watched(t, Watch{Status: func() string { return line.Load().(string) }}, func(m *manager, _ *observer.ObservedLogs) {
		for _, next := range []string{"regular", "fallback\nSTATUS=forged", "fallback\nSTATUS=forged", "regular"} {
			time.Sleep(5 * time.Second)
			line.Store(next)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		want := []string{"starting", "regular", "fallback STATUS=forged", "regular"}
		if got := m.statuses(); !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		if len(m.fed) > 0 {
			t.Error("a watchdog was fed that nobody set")
		}
	})
}

// A manager that cannot be reached is complained of once, and does not stop
// the process.
func TestManagerThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, log := observer.New(zapcore.InfoLevel)
		calls := 0
		w := Watch{Watchdog: interval, Status: func() string { return "fine" }, Log: zap.New(core),
			Notify: func(...string) (bool, error) { calls++; return false, errors.New("refused") }}
		ctx, stop := context.WithTimeout(t.Context(), 5*interval)
		defer stop()
		w.Run(ctx)
		if calls < 5 || log.Len() != 1 {
			t.Errorf("%d calls, log: %v", calls, log.All())
		}
	})
}

// A probe names the part that does not answer, and waits for a part that takes its time.
func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var quick, slow worker
		late := Part{Name: "slow loop", Turns: slow.turns.Load, Prod: func() { time.AfterFunc(time.Second/2, slow.turn) }}
		if err := Alive(ctx, []Part{quick.part("quick loop"), late}); err != nil {
			t.Errorf("both work: %v", err)
		}
		slow.stuck.Store(true)
		if err := Alive(ctx, []Part{quick.part("quick loop"), late}); err == nil || err.Error() != "the slow loop has stopped working" {
			t.Errorf("one is stuck: %v", err)
		}
	})
}
