package capacity

import (
	"cmp"
	"slices"
	"sort"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/record/memory"
)

// slots is how many the default layout has.
const slots = 8192

// demand is when how many slots are taken, for the first n hosts of a run, for
// any n.
type demand struct {
	hosts int
	edges []edge // in order of time
}

// edge is a moment at which a host takes a slot or one of its slots is free.
type edge struct {
	at   int64
	host int32
	more int32 // +1 or -1
}

// measure runs the scenario on a pool with slots to spare.
func measure(seed uint64, s scenario) (*demand, *world) {
	s.terms = roomy(s.terms)
	w := newWorld(seed, s, inMemory(s.terms))
	w.run()
	return w.demand(), w
}

// roomy is the terms on a pool that has more slots than a run has grants. Each
// is of one ID per millisecond.
func roomy(t provider.Terms) provider.Terms {
	t.Timeline.BitTS = 36
	return t.WithBitSeq(0)
}

func inMemory(terms provider.Terms) func(func() int64) provider.Provider {
	return func(nowMS func() int64) provider.Provider {
		services := provider.Services{Default: terms}
		rnd := newRand(*seed, -1)
		p, err := pool.New(pool.Config{
			Records: memory.NewArea(pool.AreaOf(services), nowMS), Services: services, Info: provider.Info{Name: "memory"}, Random: rnd.Int64N,
		})
		if err != nil {
			panic(err)
		}
		return p
	}
}

func (w *world) demand() *demand {
	d := &demand{hosts: w.hosts}
	end := w.length + beginMS
	for _, g := range w.grants {
		d.edges = append(d.edges, edge{g.from, int32(g.host), 1})
		if g.to <= end {
			d.edges = append(d.edges, edge{g.to, int32(g.host), -1})
		}
	}
	// A slot can be granted in the millisecond in which it becomes free.
	slices.SortFunc(d.edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.more, b.more)) })
	return d
}

// peak is the most slots that the first n hosts take at one time.
func (d *demand) peak(n int) int {
	taken, most := int32(0), int32(0)
	for _, e := range d.edges {
		if int(e.host) < n {
			taken += e.more
			most = max(most, taken)
		}
	}
	return int(most)
}

// taken is how many slots all the hosts take at the time, in Unix ms.
func (d *demand) taken(at int64) (taken int) {
	for _, e := range d.edges {
		if e.at > at {
			break
		}
		taken += int(e.more)
	}
	return taken
}

// fit is the largest number of hosts that need no more than so many slots. It
// is found by bisection among those of the run; all of them if they fit.
func (d *demand) fit(slots int) int {
	return sort.Search(d.hosts, func(n int) bool { return d.peak(n+1) > slots })
}

// formula is the number of hosts that docs/capacity.md gives for so many slots,
// on average over time: each lease takes one, and each that a crash leaves
// behind takes it until it ends, which is 0.55 terms later on average as it is
// replaced at 0.9 of one, and for the quarantine.
func (s scenario) formula(slots int) float64 {
	behind := s.crashes * s.lost * (0.55*s.terms.Term.Hours() + s.terms.Quarantine.Hours())
	return float64(slots) / (float64(s.services) * float64(s.leases) * (1 + behind))
}
