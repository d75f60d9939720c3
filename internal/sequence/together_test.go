package sequence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
)

// gated holds changes up until the gate is open, and counts them.
type gated struct {
	record.Store
	gate    chan struct{}
	changes int
	ended   int // by the end of their contexts
	fails   error
}

func (g *gated) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	g.changes++
	select {
	case <-g.gate:
	case <-ctx.Done():
		g.ended++
		return 0, ctx.Err()
	}
	at, err := g.Store.Change(ctx, ask, rule)
	if g.fails != nil && err == nil {
		err = g.fails
	}
	return at, err
}

func inCrowd(t *testing.T, test func(*testing.T, *gated, *Records)) {
	synctest.Test(t, func(t *testing.T) {
		g := &gated{Store: memory.New(nil), gate: make(chan struct{}, 1000)}
		s := OnRecords(g)
		test(t, g, s)
		synctest.Wait()
		if len(s.crowds.waiting) != 0 {
			t.Errorf("%d crowds are left", len(s.crowds.waiting))
		}
	})
}

// Callers that wait for a change are answered by the next one, together, and first come, first
// served; a repetition is one wherever it comes.
func TestManyCallsInOneChange(t *testing.T) {
	inCrowd(t, func(t *testing.T, g *gated, s *Records) {
		const many = 1 + 3*maxTogether
		ids := make([]string, many)
		got := make([]int64, 2*many)
		ask := func(i int) {
			r := asking(1, DefaultOptions())
			r.RequestID = ids[i%many]
			values, err := s.Next(t.Context(), r)
			if err != nil {
				t.Errorf("%d: %v", i, err)
			}
			got[i] = values.First
		}
		for i := range many {
			ids[i] = NewRequestID()
			go ask(i)
			time.Sleep(time.Second)
		}
		open := func() {
			for range cap(g.gate) {
				g.gate <- struct{}{}
			}
			synctest.Wait()
			for len(g.gate) > 0 {
				<-g.gate
			}
		}
		open()
		if most := 1 + 3; g.changes > most {
			t.Errorf("%d calls took %d changes, want %d at most", many, g.changes, most)
		}
		for i := 2*many - MaxReceipts; i < 2*many; i++ {
			go ask(i)
			synctest.Wait()
		}
		open()
		for i, value := range got {
			if want := int64(i%many) + 1; value != want && (i < many || i >= 2*many-MaxReceipts) {
				t.Errorf("call %d got %d, want %d", i, value, want)
			}
		}
	})
}

// A caller that leaves before its call is carried out takes nothing, and a caller that leaves
// later holds up no other. A change without callers ends.
func TestCallersLeaveACrowd(t *testing.T) {
	inCrowd(t, func(t *testing.T, g *gated, s *Records) {
		var mu sync.Mutex
		results := map[string]error{}
		values := map[string]int64{}
		ask := func(name string) (leave func()) {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				got, err := s.Next(ctx, asking(1, DefaultOptions()))
				mu.Lock()
				defer mu.Unlock()
				results[name], values[name] = err, got.First
			}()
			synctest.Wait()
			return cancel
		}
		open := func() {
			g.gate <- struct{}{}
			synctest.Wait()
		}
		ask("first")
		leaves := ask("left while it waited")
		stays := ask("stayed")
		under := ask("left under way")
		leaves()
		synctest.Wait()
		open() // the first; the group of two others is under way
		under()
		synctest.Wait()
		ask("after")
		open()
		lonely := ask("alone")
		open()
		other := ask("alone too") // with the one before
		lonely()
		other()
		synctest.Wait()
		stays()
		if err := results["left while it waited"]; !errors.Is(err, record.ErrCrowded) || !errors.Is(err, context.Canceled) {
			t.Errorf("who left while waiting got %v", err)
		}
		if err := results["left under way"]; !errors.Is(err, context.Canceled) || errors.Is(err, record.ErrCrowded) || IsAnswer(err) {
			t.Errorf("who left a change under way got %v", err)
		}
		for name, want := range map[string]int64{"first": 1, "stayed": 2, "after": 4} {
			if results[name] != nil || values[name] != want {
				t.Errorf("%s got %d (%v), want %d", name, values[name], results[name], want)
			}
		}
		if g.ended == 0 {
			t.Error("a change went on without callers")
		}
	})
}

// A caller that is out of time at the end of the change that it waits for leaves without asking
// the store, whichever of the two events is noticed first.
func TestACrowdEndsAtOneMoment(t *testing.T) {
	inCrowd(t, func(t *testing.T, g *gated, s *Records) {
		end := time.Now().Add(time.Second)
		for i := range 2 * maxTogether {
			go func() {
				ctx, cancel := context.WithDeadline(t.Context(), end)
				defer cancel()
				_, err := s.Next(ctx, asking(1, DefaultOptions()))
				if i > 0 && !errors.Is(err, record.ErrCrowded) {
					t.Errorf("%d: %v", i, err)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(time.Second)
	})
}

// A failure is everybody's, and each asks again by itself.
func TestACrowdFails(t *testing.T) {
	inCrowd(t, func(t *testing.T, g *gated, s *Records) {
		const many = 5
		for i := range many {
			go func() {
				r := asking(1, DefaultOptions())
				r.RequestID = NewRequestID()
				_, err := s.Next(t.Context(), r)
				if i > 0 && !errors.Is(err, errLost) {
					t.Errorf("%d: %v", i, err)
				}
				if got, err := s.Next(t.Context(), r); err != nil || got.First != int64(i+1) {
					t.Errorf("%d asks again and gets %d (%v)", i, got.First, err)
				}
			}()
			synctest.Wait()
		}
		g.gate <- struct{}{}
		synctest.Wait() // the first has its answer, and the group is held up
		g.fails = errLost
		g.gate <- struct{}{}
		synctest.Wait()
		g.fails = nil
		close(g.gate)
		synctest.Wait()
	})
}

// Calls that one change carries out get what each would get by itself.
func TestTogetherAsOneAfterTheOther(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		nowMS := int64(1_800_000_000_000)
		now := func() int64 { return nowMS }
		crowd, alone := OnRecords(memory.New(now)), OnRecords(memory.New(now))
		options := DefaultOptions()
		if random.IntN(3) == 0 {
			options.TTL = time.Hour
		}
		if random.IntN(3) == 0 {
			options.Max = 300
		}
		if random.IntN(2) == 0 {
			options.OnMax = Fail
		}
		var asked []Request
		request := func() Request {
			r := asking(1+random.IntN(3), options)
			switch n := random.IntN(20); {
			case n < 3 && len(asked) > 0:
				return asked[len(asked)-1-random.IntN(min(len(asked), 150))]
			case n > 3:
				r.RequestID = fmt.Sprint(random.Uint64())
			}
			if random.IntN(50) == 0 {
				r.Options.Step = 7
			}
			asked = append(asked, r)
			return r
		}
		for range 15 {
			var requests []Request
			for range 1 + random.IntN(maxTogether) {
				requests = append(requests, request())
			}
			for len(requests) > 0 {
				var later []Request
				for i, got := range crowd.carryOut(t.Context(), requests) {
					if errors.Is(got.err, errLater) {
						later = append(later, requests[i])
						continue
					}
					want, err := alone.Next(t.Context(), requests[i])
					if fmt.Sprint(err) != fmt.Sprint(got.err) || err == nil && !slices.Equal(got.values.Values(), want.Values()) {
						t.Fatalf("seed %d: %+v got %v (%v), and by itself %v (%v)", seed, requests[i], got.values, got.err, want, err)
					}
				}
				if len(later) == len(requests) {
					t.Fatalf("seed %d: none of %d calls was carried out", seed, len(requests))
				}
				requests = later
			}
			nowMS += int64(random.IntN(2000))
			if random.IntN(8) == 0 {
				nowMS += 3600_000
			}
		}
	}
}

// outrun is a store with changes that fail before they have run.
type outrun struct {
	record.Store
	late func() // runs the rule of the latest one
}

func (o *outrun) Change(_ context.Context, _ record.Ask, rule record.Rule) (int64, error) {
	o.late = func() { _, _ = rule(record.View{NowMS: 1}) }
	return 0, record.ErrOutrun
}

// A late run of a failed change makes no answer: it is unknown whether it is committed.
func TestLateChangesAnswerNobody(t *testing.T) {
	o := &outrun{}
	one := Request{Tenant: "t", Key: "k", Count: 1, Options: DefaultOptions()}
	answers := OnRecords(o).carryOut(t.Context(), []Request{one, one})
	o.late()
	for i, got := range answers {
		if !errors.Is(got.err, record.ErrOutrun) || got.values != (Range{}) {
			t.Errorf("call %d got %+v", i, got)
		}
	}
}
