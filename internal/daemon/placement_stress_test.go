package daemon

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// rogue is a peer that does random things.
type rogue struct {
	net  net.Conn
	rand *rand.Rand
	tame bool       // answers well
	mu   sync.Mutex // guards rand, and keeps messages apart
}

func (p *rogue) pick(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rand.IntN(n)
}

func (p *rogue) send(message any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.net.Write(pack(message))
}

// act sends requests, some of which are none.
func (p *rogue) act(n int) {
	room := func() string { return fmt.Sprint(p.pick(20)) }
	kind := func() string { return []string{"room", "user", "a/b"}[p.pick(3)] }
	for i := range n {
		switch p.pick(12) {
		case 0, 1:
			p.send([]any{0, i, "Placement.Register", []any{[]any{kind(), kind()}}})
		case 2:
			p.send([]any{0, i, "Placement.Unregister", []any{}})
		case 3:
			p.send([]any{0, i, "Placement.Watch", []any{options{"events": []string{"resolved", "activated", "passivated"}}}})
		case 4:
			p.send([]any{0, i, "Placement.Snapshot", []any{options{"limit": 1 + p.pick(10), "after": kind()}}})
		case 5:
			p.send([]any{0, i, "Placement.Check", []any{"room", room(), p.pick(100)}})
		case 6: // answers without a question
			p.send([]any{1, p.pick(20), nil, options{"pid": "odd", "snapshot": 5}})
		case 7:
			p.send([]any{2, "Placement.Register", []any{[]any{"room"}}})
		default:
			p.send([]any{0, i, "Placement.Resolve", []any{kind(), room(), options{"wait_ms": p.pick(50)}}})
		}
	}
	if p.pick(4) == 0 {
		p.send(5) // no message: the connection ends
	}
}

// answer answers what the daemon asks, well or not.
func (p *rogue) answer() {
	in := msgpack.NewDecoder(p.net)
	for {
		raw, err := in.DecodeRaw()
		if err != nil {
			return
		}
		var message []msgpack.RawMessage
		if msgpack.Unmarshal(raw, &message) != nil || len(message) != 4 || message[0][0] != 0 {
			continue
		}
		id := message[1]
		good := []any{1, id, nil, options{"pid": "p", "snapshot": []byte("left")}}
		choice := p.pick(12)
		if p.tame {
			choice = -1
		}
		switch choice {
		case 0:
			p.send([]any{1, id, "BROKEN: no", nil})
		case 1:
			p.send([]any{1, id, nil, []any{1, []any{2}}})
		case 2:
			p.send([]any{1, id, 5, options{"pid": 5}})
		case 3:
			p.send(good)
			p.send(good)
		case 4: // never
		case 5:
			go func() {
				time.Sleep(time.Millisecond)
				p.send(good)
			}()
		case 6:
			_ = p.net.Close()
			return
		default:
			p.send(good)
		}
	}
}

// With peers of all sorts, the daemon serves the others, and forgets peers that are gone.
func TestRoguePeers(t *testing.T) {
	ring.All(t)
	s := newSite(t)
	hosts := []*placed{s.start("a:1").sees(1), s.start("b:1").sees(2)}
	hosts[0].sees(2)
	var all sync.WaitGroup
	for n := range 40 {
		all.Go(func() {
			for life := range 5 {
				c, err := net.Dial("unix", hosts[n%2].path)
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.SetDeadline(time.Now().Add(hang))
				p := &rogue{net: c, rand: rand.New(rand.NewPCG(uint64(n), uint64(life)))}
				var answers sync.WaitGroup
				answers.Go(p.answer)
				p.act(40)
				if half, ok := c.(*net.UnixConn); ok && p.pick(2) == 0 {
					_ = half.CloseWrite()
				}
				time.Sleep(time.Duration(p.pick(3)) * time.Millisecond)
				_ = c.Close()
				answers.Wait()
			}
		})
	}
	all.Wait()
	for _, h := range hosts {
		h.dial().alive()
		await.Eventually(t, "everything has ended", func() bool {
			x := h.placement.executors
			x.mu.Lock()
			gone := len(x.byConn) == 0 && len(x.byKind) == 0 && len(x.assigned) == 0
			x.mu.Unlock()
			return gone && h.placement.driver.Overview().Total == 0
		})
	}
	// Its remains stand in no one's way.
	c, err := net.Dial("unix", hosts[0].path)
	must.Succeed(t, err)
	good := &rogue{net: c, rand: rand.New(rand.NewPCG(0, 0)), tame: true}
	good.send([]any{0, 0, "Placement.Register", []any{[]any{"room", "user"}}})
	var answers sync.WaitGroup
	answers.Go(good.answer)
	await.Eventually(t, "the kinds are known", func() bool { return len(hosts[0].placement.executors.kinds()) == 2 })
	for room := range 20 {
		for _, kind := range []string{"room", "user"} {
			if _, err := hosts[0].placement.driver.Resolve(t.Context(), placement.Key{Kind: kind, Identity: fmt.Sprint(room)}, hang); err != nil {
				t.Errorf("%s %d: %v", kind, room, err)
			}
		}
	}
	_ = c.Close()
	answers.Wait()
}
