package daemon

import (
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// A batch that needs hundreds of milliseconds gives a single ID its place in
// the very next one. The clock moves only when everybody is known to wait, so
// the timestamps in the IDs are exact, on any machine.
func TestSingleBesideBatches(t *testing.T) {
	const rounds, hogs = 20, 3
	r := newRig(t).start()
	for range hogs {
		p := r.dial()
		p.ask("NextIDs", MaxBatch, options{"timeout_ms": 3_600_000})
		p.ask("NextIDs", MaxBatch, options{"timeout_ms": 3_600_000}) // and again
	}
	single := r.dial()
	now := int64(startMS)
	var last snowflake.ID
	for range rounds {
		r.waiters(hogs)
		single.ask("NextID", options{"timeout_ms": 3_600_000})
		r.waiters(hogs + 1)
		before := r.issued("default")
		r.clock.Advance(time.Millisecond)
		now++
		id, err := idOf(single.receive().result)
		if err != nil || id <= last {
			t.Fatalf("%d after %d, %v", id, last, err)
		}
		if at := timeline.UnixMS(id); at != now {
			t.Errorf("the ID embeds %d ms, and %d was the next", at-startMS, now-startMS)
		}
		last = id
		// The batches lose no throughput by it.
		until(t, "the millisecond is used up", func() bool { return r.issued("default") == before+256 })
	}
}

// Two services do not wait for each other.
func TestServicesAreIndependent(t *testing.T) {
	r := newRig(t, func(s *setup) { s.services["orders"] = settings() }).start()
	p := r.dial()
	mine, theirs := p.ids(256), p.ids(256, options{"service": "orders"})
	layout := snowflake.DefaultLayout()
	for i := range mine {
		if timeline.Low(mine[i])>>layout.BitSeq == timeline.Low(theirs[i])>>layout.BitSeq {
			t.Fatalf("both services use the machine ID of %d and %d", mine[i], theirs[i])
		}
	}
	r.clock.Advance(time.Millisecond)
	p.ids(256)
	waiting := r.dial()
	waiting.ask("NextID")
	r.waiters(1)
	p.ids(256, options{"service": "orders"})
	if a, b := r.issued("default"), r.issued("orders"); a != 512 || b != 512 {
		t.Errorf("%d and %d IDs", a, b)
	}
	r.clock.Advance(time.Millisecond)
	if got := waiting.receive(); got.err != nil {
		t.Error(got.err)
	}
}
