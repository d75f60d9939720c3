package daemon

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

// On every way to IDs a request belongs to its user: one who comes behind several of
// another gets an ID of the next millisecond, which has fewer than there are requests.
func TestIDsAreSharedByUserOnEveryWay(t *testing.T) {
	const each, greedy, modest = 2, 1000, 1001 // IDs of a millisecond; users
	type way struct {
		path bool
		ask  func(r *rig, uid uint32, count int) (hangUp func())
	}
	asks := func(dial func(*rig, uint32) *peer, params ...any) func(*rig, uint32, int) func() {
		return func(r *rig, uid uint32, count int) func() {
			p := dial(r, uid)
			p.ask("NextIDs", append([]any{count}, params...)...)
			return func() { _ = p.Close() }
		}
	}
	for name, w := range map[string]way{
		"fast path":               {true, asks((*rig).parkAs)},
		"fast path, with options": {true, asks((*rig).parkAs, patient())},
		"goroutine":               {false, asks((*rig).dialAs)},
		"goroutine, with options": {false, asks((*rig).dialAs, patient())},
		"door": {false, func(r *rig, uid uint32, count int) func() {
			ctx, cancel := context.WithCancel(r.t.Context())
			d := r.server.NewDoor("door", func(*wire.Error) []byte { return nil })
			g := &Guest{door: d, account: r.server.budget.openFor(owner{uid: uid})}
			order := Order{Service: r.services["default"], Count: int64(count), Timeout: time.Hour}
			go func() { _, _ = g.Next(ctx, order, []generator.Range{}) }()
			return cancel
		}},
	} {
		t.Run(name, func(t *testing.T) {
			newOne := newRig
			if w.path {
				newOne = newFastPathRig
			}
			r := newOne(t, func(s *setup) {
				s.terms.BitSeq, s.terms.BitID = 1, snowflake.ValueBits-snowflake.DefaultBitTS-1
				s.change(func(c *config.Service) { c.MaxThroughputPerMS = each })
			}).start()
			r.dial().ids(each)
			defer r.waiters(0)
			for i := range each + 1 {
				defer w.ask(r, greedy, 100)()
				r.waiters(i + 1)
			}
			defer w.ask(r, modest, 1)()
			r.waiters(each + 2)
			r.clock.Advance(time.Millisecond)
			r.waiters(each + 1)
		})
	}
}

// parkAs connects to the fast path as a user that the process is not.
func (r *rig) parkAs(uid uint32) *peer {
	r.t.Helper()
	r.fastPath()
	near, far := socketpair(r.t, syscall.SOCK_STREAM)
	a := r.server.budget.openFor(owner{uid: uid})
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	if !r.server.fastPath.park(far, a) {
		r.t.Fatal("the fast path does not take the connection")
	}
	r.server.parked++
	return newPeer(r.t, near)
}
