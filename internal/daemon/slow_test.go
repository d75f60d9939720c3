package daemon

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// slowly starts a server with a method Slow. Each call waits for an answer from
// the channel, and puts what ended it into ended.
func slowly(t *testing.T, changes ...func(*setup)) (r *rig, answers chan any, ended chan error) {
	t.Helper()
	r = newRig(t, changes...)
	answers, ended = make(chan any), make(chan error, 1000)
	r.with("Slow", func(_ *Server, _ context.Context, d *responder) error {
		return d.aside(func(ctx context.Context) (any, error) {
			select {
			case answer := <-answers:
				ended <- nil
				return answer, nil
			case <-ctx.Done():
				ended <- context.Cause(ctx)
				return nil, ctx.Err()
			}
		})
	})
	return r.start(), answers, ended
}

func (r *rig) with(name string, call func(*Server, context.Context, *responder) error) {
	r.server.methods = append(r.server.methods, countedMethod{method{name, call}, func() prometheus.Counter { return r.metrics.Requests(name, "ok") }})
}

func TestSlowRequestIsOvertaken(t *testing.T) {
	r, answers, _ := slowly(t)
	p := r.dial()
	p.ask("Slow")
	slow := p.lastID
	p.id()
	p.alive()
	answers <- "late"
	var text string
	got := p.receive()
	p.decode(got.result, &text)
	if got.id != slow || text != "late" {
		t.Errorf("message %d: %q; want %d", got.id, text, slow)
	}
	p.alive()
}

// While one request waits for IDs, a slow one is answered.
func TestSlowRequestOvertakesOneThatWaitsForIDs(t *testing.T) {
	r, answers, _ := slowly(t, func(s *setup) { s.change(func(c *config.Service) { c.MaxBackward = -1 }) })
	p := r.dial()
	p.ids(256)
	p.ask("Slow")
	slow := p.lastID
	p.ask("NextID")
	r.waiters(2)
	answers <- "first"
	p.answered(slow, slow)
	await.Eventually(t, "the other is served", func() bool {
		r.clock.Advance(1e6)
		return r.awaiting() == 0
	})
	p.succeeds()
}

// Answers of slow requests never come amid another answer, however long.
func TestSlowAnswersStayWhole(t *testing.T) {
	const calls, batches = 200, 20
	r, answers, _ := slowly(t, wide, func(s *setup) { s.source = clock.System{} })
	p := r.dial()
	for range calls {
		p.ask("Slow")
	}
	r.waiters(calls)
	go func() {
		for range calls {
			answers <- "a word"
		}
	}()
	for range batches {
		p.ask("NextIDs", 20_000)
	}
	words := 0
	for range calls + batches {
		got := p.receive()
		if got.err != nil {
			t.Fatal(got.err)
		}
		var text string
		if msgpack.Unmarshal(got.result, &text) == nil && text == "a word" {
			words++
		}
	}
	if words != calls {
		t.Errorf("%d words of %d", words, calls)
	}
}

func TestSlowRequestEndsWithItsPeer(t *testing.T) {
	r, _, ended := slowly(t)
	p := r.dial()
	p.ask("Slow")
	r.waiters(1)
	_ = p.Close()
	if err := <-ended; !errors.Is(err, errHungUp) {
		t.Errorf("it ended with %v", err)
	}
	await.Eventually(t, "nothing is left of it", func() bool { return r.awaiting() == 0 && r.server.connections() == 0 })
}

// A peer that has sent all its requests still gets the answers; and its end after that is
// noticed.
func TestSlowRequestOfAHalfClosedPeer(t *testing.T) {
	r, answers, ended := slowly(t)
	for _, stays := range []bool{true, false} {
		p := r.dial()
		p.ask("Slow")
		r.waiters(1)
		must.Succeed(t, p.CloseWrite())
		if !stays {
			_ = p.Close()
			if err := <-ended; !errors.Is(err, errHungUp) {
				t.Errorf("it ended with %v", err)
			}
			continue
		}
		answers <- "yes"
		<-ended
		p.succeeds()
		p.ends()
	}
}

func TestSlowRequestsAreLimited(t *testing.T) {
	r, answers, _ := slowly(t, func(s *setup) { s.MaxInFlight = 2 })
	p := r.dial()
	p.ask("Slow")
	p.ask("Slow")
	r.waiters(2)
	p.fails(wire.CodeOverloaded, "Slow")
	for range 2 {
		answers <- "ok"
		p.succeeds()
	}
}

func TestSlowRequestIsCutOffByTheDrain(t *testing.T) {
	r, _, _ := slowly(t, func(s *setup) { s.DrainTimeout = 1 })
	p := r.dial()
	p.ask("Slow")
	r.waiters(1)
	r.drains()
	p.wantError(p.receive(), wire.CodeShuttingDown)
	p.ends()
}

// The locks that a peer holds by its connection are given back when it ends, and the notices that
// it asked for reach it and no other.
func TestWhatTheConnectionHolds(t *testing.T) {
	r := newRig(t)
	var held atomic.Int64
	holders := make(chan *conn, 1)
	r.with("Hold", func(_ *Server, _ context.Context, d *responder) error {
		c := d.conn
		return d.aside(func(context.Context) (any, error) {
			held.Add(1)
			c.attach(func() { held.Add(-1) })
			holders <- c
			return "held", nil
		})
	})
	r.start()
	p, other := r.dial(), r.dial()
	p.result("Hold")
	c := <-holders
	p.alive() // would go back to the fast path after this
	c.notify("Lost", map[string]any{"key": "k"})
	var message []any
	if err := p.dec.Decode(&message); err != nil || len(message) != 3 || message[1] != "Lost" {
		t.Fatalf("the notification: %v, %v", message, err)
	}
	other.alive()
	p.alive()
	if held.Load() != 1 {
		t.Error("given back too early")
	}
	_ = p.Close()
	await.Eventually(t, "it is given back", func() bool { return held.Load() == 0 })
	other.alive()
}
