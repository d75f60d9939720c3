package fences

import (
	"context"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// On PostgreSQL the provider and the store are at one place by default. Each has a fence: the
// metric tells the later one, and the log begins and ends each once.
func TestTwoFencesAtOnePlace(t *testing.T) {
	const url = "postgres://kazahana@127.0.0.1:1/kazahana"
	var now int64 = 1000
	core, logged := observer.New(zap.InfoLevel)
	ends := []int64{0, 0}
	w := &Watcher{nowMS: func() int64 { return now }, log: zap.New(core)}
	for i := range ends {
		known := func() *backend.Fence {
			if ends[i] == 0 {
				return nil
			}
			return &backend.Fence{UntilMS: ends[i]}
		}
		w.files = append(w.files, &file{url: url, known: known, look: func(context.Context) error { return nil }})
	}
	metered := metrics.New(metrics.Build{})
	metered.Fences(w.All)
	for _, c := range []struct {
		ends       [2]int64
		until      int64
		said, over int
	}{
		{[2]int64{0, 0}, 0, 0, 0},
		{[2]int64{0, 5000}, 5000, 1, 0},
		{[2]int64{3000, 5000}, 5000, 2, 0},
		{[2]int64{3000, 5000}, 5000, 2, 0},
		{[2]int64{3000, 0}, 3000, 2, 1},
		{[2]int64{0, 0}, 0, 2, 2},
	} {
		copy(ends, c.ends[:])
		w.step(t.Context())
		if _, err := metered.Registry.Gather(); err != nil {
			t.Errorf("%v: %v", c.ends, err)
		}
		if all := w.All(); len(all) != 1 || all[0].UntilMS != c.until {
			t.Errorf("%v: the metric tells %+v, want one, until %d", c.ends, all, c.until)
		}
		said, over := logged.FilterMessage("grants are held back").Len(), logged.FilterMessage("grants begin again").Len()
		if said != c.said || over != c.over {
			t.Errorf("%v: the log tells of %d beginnings and %d ends, want %d and %d", c.ends, said, over, c.said, c.over)
		}
	}
	p, err := backend.OpenProvider(url, backend.ProviderOptions{})
	must.Succeed(t, err)
	defer p.Close()
	store, err := backend.OpenStore(url, backend.StoreOptions{})
	must.Succeed(t, err)
	defer store.Close()
	if both := New(p, &issuer.KeyedStores{Store: store}, w.nowMS, zap.NewNop()); len(both.files) != 2 || len(both.All()) != 1 {
		t.Errorf("%d fences, %+v", len(both.files), both.All())
	}
}

// An end that moves on at each look, as on etcd where the host's clock is ahead, is logged once a
// minute. A jump, as with a second fence or a longer lease, is logged at once.
func TestAnEndThatMovesIsLoggedOnceAMinute(t *testing.T) {
	core, logged := observer.New(zap.InfoLevel)
	var now, until int64 = 1_000_000, 0
	w := &Watcher{nowMS: func() int64 { return now }, log: zap.New(core), files: []*file{{
		known: func() *backend.Fence { return &backend.Fence{UntilMS: max(until, now+1000)} },
		look:  func(context.Context) error { return nil },
	}}}
	after := func(seconds, want int) {
		t.Helper()
		for range seconds {
			w.step(t.Context())
			now += 1000
		}
		if said := logged.FilterMessage("grants are held back").Len(); said != want || logged.Len() != said {
			t.Errorf("after %d s more the log tells of %d beginnings in %d lines, want %d", seconds, said, logged.Len(), want)
		}
	}
	after(61, 1)
	after(60, 2)
	until = now + 600_000
	after(1, 3)
	after(60, 3)
	until = now + 120_000
	after(1, 4)
}
