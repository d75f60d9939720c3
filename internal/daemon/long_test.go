package daemon

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// lengthy starts a server with a method Long, whose answer is as long as any socket's
// buffer is not. Before each is made, it waits for a token.
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

// Few long answers are made at a time, and one user leaves room for another.
func TestLongAnswersAreMadeInTurn(t *testing.T) {
	const peers = 20
	r, made, tokens := lengthy(t)
	for range peers {
		r.dial().ask("Long")
	}
	r.waiters(peers)
	await.Eventually(t, "as many are made as may be", func() bool { return made.Load() == maxUserMaking && len(r.server.budget.making) == maxUserMaking })
	<-tokens
	await.Eventually(t, "the next one is", func() bool { return made.Load() == maxUserMaking+1 })
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
	for range maxMaking {
		r.server.budget.making <- struct{}{}
	}
	p := r.dial()
	p.fails(wire.CodeOverloaded, "Soon")
	if got := r.server.Status().Overload; len(got) != 1 || got[0].Quota != quota.FixedAnswers || got[0].Limit != maxMaking {
		t.Errorf("the refusal is not seen: %+v", got)
	}
	<-r.server.budget.making
	p.alive()
}

// An answer that is made holds no place while room is made for it: here the connection
// that has to give way does not end.
func TestLongAnswersHoldNoPlaceWhileRoomIsMade(t *testing.T) {
	b := newLedger(Limits{MemoryLimit: 2 * wire.MaxMessage * bytesShare, UserMemory: 2 * wire.MaxMessage})
	b.stuck = true
	half, long := b.account(1), b.account(1)
	must.Succeed(t, half.Reserve(wire.MaxMessage))
	began := time.Now()
	long.takeMade(wire.MaxMessage + 1)
	if took := time.Since(began); took >= roomPatience {
		t.Errorf("it has waited for %v", took)
	}
	if half.over.Load() == nil || long.over.Load() != nil || b.used != 2*wire.MaxMessage+1 {
		t.Errorf("%d bytes are counted: %v, %v", b.used, half.over.Load(), long.over.Load())
	}
}

// Of one user, a bounded number of requests waits for long answers to be made: no more of
// them run out of time together.
func TestLongAnswersOfAUserAreBounded(t *testing.T) {
	r, _, tokens := lengthy(t, ample)
	p := r.dial()
	p.alive()
	r.user().asking.Store(maxUserAsking)
	p.fails(wire.CodeOverloaded, "Long")
	r.user().asking.Store(maxUserAsking - 1)
	p.ask("Long")
	<-tokens
	p.succeeds()
}
