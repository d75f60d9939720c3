package daemon

import (
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// user is that of all connections of the test.
func (r *rig) user() (u *user) {
	r.server.budget.mu.Lock()
	defer r.server.budget.mu.Unlock()
	for _, u = range r.server.budget.users {
	}
	return u
}

// runningPlaces are those for connections that are at work.
var runningPlaces = map[string]func(*rig) running{
	"of the user": func(r *rig) running { return r.user().running },
	"of all":      func(r *rig) running { return r.server.budget.running },
}

// fill takes all places, until they are left.
func (places running) fill() (leave func()) {
	for range cap(places) {
		places <- struct{}{}
	}
	return func() {
		for range cap(places) {
			<-places
		}
	}
}

// No more connections of one user are at work at a time than have places, nor of all users.
func TestConnectionsWaitForAPlaceToRun(t *testing.T) {
	for name, places := range runningPlaces {
		t.Run(name, func(t *testing.T) {
			r := newRig(t).start()
			p := r.dial()
			p.alive()
			leave := places(r).fill()
			p.ask("NextIDs", maxFastPathBatch+1, options{"timeout_ms": 0}) // not for the fast path
			await.Eventually(t, "it waits for a place", func() bool { return strings.Contains(await.Stacks(), "(*conn).run(") })
			leave()
			p.receive()
			p.alive()
		})
	}
}

// A connection that gives way ends while every place is taken, whether it waits for its peer
// then or for a place.
func TestEvictedConnectionsNeedNoPlace(t *testing.T) {
	for name, places := range runningPlaces {
		for _, queued := range []bool{false, true} {
			r := newRig(t).start()
			p := r.dial()
			p.alive()
			half := func() {
				p.send(request(1, strings.Repeat("x", 10*wire.FreeBuffer), []any{})[:5*wire.FreeBuffer])
				await.Eventually(t, "half a message is there", func() bool { return r.held() > 0 })
				await.Eventually(t, "nobody is at work", func() bool { return len(r.user().running) == 0 })
			}
			if !queued {
				half()
			}
			leave := places(r).fill()
			if queued {
				p.ask("NextIDs", maxFastPathBatch+1, options{"timeout_ms": 0}) // not for the fast path
				await.Eventually(t, "it waits for a place", func() bool { return strings.Contains(await.Stacks(), "(*conn).run(") })
			}
			r.server.mu.Lock()
			r.server.budget.mu.Lock()
			for c := range r.server.conns {
				c.account.lose(wire.Errorf(wire.CodeOverloaded, "others need the memory"))
			}
			r.server.budget.mu.Unlock()
			r.server.mu.Unlock()
			got := p.receive()
			if p.wantError(got, wire.CodeOverloaded); got.id != 0 {
				t.Errorf("%s, queued %v: %+v", name, queued, got)
			}
			if n := r.held(); n != 0 {
				t.Errorf("%s, queued %v: %d bytes are held still", name, queued, n)
			}
			leave()
			_ = p.Close()
			r.open(0)
		}
	}
}

// What a peer sends that nobody wants is read by those that have a place.
func TestDiscardTakesTurns(t *testing.T) {
	r := newRig(t, func(s *setup) { s.patience.refuse = hang }).start()
	p := r.dial()
	p.alive()
	places := r.user().running
	p.send([]byte{0xc1})
	p.wantError(p.receive(), wire.CodeParseError)
	await.Eventually(t, "its answer is written, and it reads", func() bool { return strings.Contains(await.Stacks(), "(*conn).discard(") })
	leave := places.fill()
	p.send(make([]byte, 1000))
	await.Eventually(t, "it waits for a place", func() bool { return strings.Contains(await.Stacks(), "(*conn).discard.func") })
	if n := len(places); n != cap(places) {
		t.Errorf("%d places are taken", n)
	}
	leave()
	await.Eventually(t, "it was read", func() bool { return !strings.Contains(await.Stacks(), "(*conn).discard.func") })
	_ = p.Close() // it need not read until the end of its patience
}
