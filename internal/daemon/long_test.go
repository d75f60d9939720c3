package daemon

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// lengthy starts a server with a method Long. The answer is longer than any socket's buffer.
// Before each is made, it waits for a token.
func lengthy(t *testing.T, changes ...func(*setup)) (r *rig, made *atomic.Int64, tokens chan struct{}) {
	t.Helper()
	r = newRig(t, changes...)
	made, tokens = new(atomic.Int64), make(chan struct{})
	r.with("Long", func(_ *Server, _ context.Context, d *responder) error {
		return d.asideLong(hang, func(ctx context.Context) (any, error) {
			made.Add(1)
			if err := enter(ctx, tokens); err != nil {
				return nil, err
			}
			return strings.Repeat("x", 8<<20), nil
		})
	})
	return r.start(), made, tokens
}

// A peer that asks for long answers and does not read has one of them made, which is
// counted. When it reads, it gets all.
func TestLongAnswersWaitForThePeer(t *testing.T) {
	const calls = 20
	r, made, tokens := lengthy(t, func(s *setup) { s.patience.write = time.Hour })
	p := r.dial()
	for range calls {
		p.ask("Long")
	}
	r.waiters(2) // the others are not read
	go func() {
		for range calls {
			<-tokens
		}
	}()
	await.Eventually(t, "the first answer is being written", func() bool { return writing() == 1 })
	if made.Load() != 1 || r.held() < 8<<20 {
		t.Errorf("%d answers are made, %d bytes are counted", made.Load(), r.held())
	}
	r.dial().id()
	for range calls {
		if got := p.receive(); got.err != nil || len(got.result) < 8<<20 {
			t.Fatalf("%d bytes, %v", len(got.result), got.err)
		}
	}
	await.Eventually(t, "nothing is held", func() bool { return r.held() == 0 && r.awaiting() == 0 })
}

// Few long answers are made at a time.
func TestLongAnswersAreMadeInTurn(t *testing.T) {
	const peers = 20
	r, made, tokens := lengthy(t)
	for range peers {
		r.dial().ask("Long")
	}
	r.waiters(peers)
	await.Eventually(t, "as many are made as may be", func() bool { return made.Load() == longWorkers && len(r.server.making) == longWorkers })
	<-tokens
	await.Eventually(t, "the next one is", func() bool { return made.Load() == longWorkers+1 })
}

// An answer is not made for a peer that has gone.
func TestLongAnswersForNobody(t *testing.T) {
	r := newRig(t)
	got := make(chan error, 1)
	r.with("Gone", func(_ *Server, ctx context.Context, d *responder) error {
		if d.conn == nil {
			return errHeavy
		}
		ctx, cancel := context.WithCancelCause(ctx)
		cancel(errHungUp)
		_, err := d.conn.makeLong(ctx, time.Hour, d.req.ID, func(context.Context) (any, error) {
			t.Error("it is made")
			return nil, nil
		})
		got <- err
		return err
	})
	r.start()
	r.dial().ask("Gone")
	if err := <-got; !errors.Is(err, errHungUp) {
		t.Error(err)
	}
}

// An answer for which it is not its turn in time is refused. A place that is free is taken, however
// short the time.
func TestLongAnswersAreRefused(t *testing.T) {
	r := newRig(t)
	r.with("Soon", func(_ *Server, _ context.Context, d *responder) error {
		return d.asideLong(0, func(context.Context) (any, error) { return nil, nil })
	})
	r.start()
	for range longWorkers {
		r.server.making <- struct{}{}
	}
	p := r.dial()
	p.fails(wire.CodeOverloaded, "Soon")
	if got := r.server.Status().Overload; len(got) != 1 || got[0].Limit != refusals.LongAnswers {
		t.Errorf("the refusal is not seen: %+v", got)
	}
	<-r.server.making
	p.alive()
}
