//go:build go1.25

package placement

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/internal/clienttest"
)

// peer is a daemon that the test scripts word by word.
type peer struct {
	t *testing.T
	*clienttest.Peer
}

// registered is a daemon that accepts a registration, and then does as the script
// says.
func registered(t *testing.T, script func(p *peer)) kazahana.Option {
	return scripted(t, func(conn net.Conn) { accept(t, conn, script) })
}

func accept(t *testing.T, conn net.Conn, script func(p *peer)) {
	p := newPeer(t, conn)
	m := p.Next()
	if m == nil || m.Method != "Placement.Register" {
		t.Errorf("the client sends %+v", m)
		return
	}
	p.Reply(m.ID, map[string]any{"authority": "a:1"})
	script(p)
	for m := p.Next(); m != nil; m = p.Next() { // until the client goes
		p.Reply(m.ID, nil)
	}
}

func newPeer(t *testing.T, conn net.Conn) *peer { return &peer{t, clienttest.NewPeer(conn)} }

// ask asks for something about the room of an identity.
func (p *peer) ask(id int64, method, identity string, version int) {
	if !p.Ask(id, method, map[string]any{"kind": "room", "identity": identity, "version": version, "token": 10 * version}) {
		p.t.Errorf("%s: the client has gone", method)
	}
}

// expect reads the next answer: an error with the words in it, or none.
func (p *peer) expect(id int64, words string) (answer map[string]any) {
	m := p.Next()
	if m == nil || !m.IsAnswer || m.ID != id {
		p.t.Errorf("%d was to be answered: %+v", id, m)
		return nil
	}
	if (words == "") != (m.Refusal == nil) || m.Refusal != nil && !strings.Contains(m.Refusal.Error(), words) {
		p.t.Errorf("%d is answered with %v", id, m.Refusal)
	}
	answer, _ = m.Result.(map[string]any)
	return answer
}

// What the daemon does not wait for any more is not begun, and what has to end
// then ends without it.
func TestExecutorIsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		c := newClient(t, registered(t, func(p *peer) {
			defer close(done)
			p.ask(1, "Activate", "1", 1) // takes 20 s
			time.Sleep(6 * time.Second)
			p.ask(2, "Passivate", "1", 1)
			p.ask(3, "Activate", "1", 2)
			p.ask(4, "Activate", "2", 1) // another actor's does not wait
			p.expect(4, "")
			p.ask(5, "Passivate", "2", 7) // another activation
			if answer := p.expect(5, ""); answer["snapshot"] != nil {
				t.Error(answer)
			}
			p.ask(6, "Explode", "2", 1)
			p.expect(6, "Explode")
			if answer := p.expect(1, ""); answer["pid"] != "late" {
				t.Error(answer)
			}
			p.expect(2, "deadline")
			p.expect(3, "too long")
			p.ask(7, "Activate", "2", 2) // the daemon knows nothing of the one before
			p.expect(7, "")
			p.ask(8, "Passivate", "2", 2)
			if answer := p.expect(8, ""); string(answer["snapshot"].([]byte)) != "left by v2" {
				t.Error(answer)
			}
		}))
		s := newStage(t)
		s.activates(func(ctx context.Context, a *Activation) (string, error) {
			if a.Identity != "1" {
				return "", nil
			}
			began := time.Now()
			<-ctx.Done()
			if waited := time.Since(began); waited != answerTime {
				t.Errorf("the context ended after %v", waited)
			}
			time.Sleep(15 * time.Second)
			return "late", nil
		})
		r := mustRegister(t, c, s.executor("room"))
		<-done
		s.expect(`activate room/1 v1 ""`, `activate room/2 v1 ""`, `ended room/1 v1 ""`, `ended room/2 v1 ""`, `activate room/2 v2 ""`, `passivate room/2 v2 ""`)
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// With the connection all is over, and Ended says so at once: not only when there
// is another connection, and also for activations under way.
func TestEndedComesWithTheEndOfTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost, over := make(chan struct{}), make(chan struct{})
		c := newClient(t, scripted(t,
			func(conn net.Conn) {
				accept(t, conn, func(p *peer) {
					p.ask(1, "Activate", "1", 1)
					p.expect(1, "")
					p.ask(2, "Activate", "2", 1)
					<-lost
					_ = conn.Close()
				})
			},
			func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }, // a daemon that hangs
		))
		s := newStage(t)
		s.activates(func(ctx context.Context, a *Activation) (string, error) {
			if a.Identity == "2" {
				<-ctx.Done()
				<-over
			}
			return "", nil
		})
		r := mustRegister(t, c, s.executor("room"))
		s.expect(`activate room/1 v1 ""`, `activate room/2 v1 ""`)
		began := time.Now()
		close(lost)
		s.expect(`ended room/1 v1 ""`)
		close(over)
		s.expect(`ended room/2 v1 ""`)
		if waited := time.Since(began); waited != 0 {
			t.Errorf("it came after %v", waited)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Close does not wait for ever for functions that do not return.
func TestCloseOfAnExecutorThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done, over := make(chan struct{}), make(chan struct{})
		c := newClient(t, registered(t, func(p *peer) {
			p.ask(1, "Activate", "1", 1)
			p.expect(1, "")
			close(done)
		}))
		r, err := c.Register(t.Context(), Executor{
			Kinds: []string{"room"}, Activate: func(context.Context, *Activation) (string, error) { return "", nil }, Ended: func(*Activation) { <-over },
		})
		if err != nil {
			t.Fatal(err)
		}
		<-done
		began := time.Now()
		if err := r.Close(t.Context()); err == nil || !strings.Contains(err.Error(), "have not returned") || time.Since(began) != answerTime {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		close(over)
	})
}

// A promise counts from before it was asked for: a promise that took longer than it holds is
// none.
func TestCheckCountsFromBeforeTheRequest(t *testing.T) {
	for name, test := range map[string]struct {
		valid   int
		want    string
		timeout time.Duration
	}{"holds": {60_000, "", patience}, "is over": {20, "unanswered", 500 * time.Millisecond}, "is none": {0, "refused", patience}} {
		t.Run(name, func(t *testing.T) {
			ready, checks := make(chan struct{}), 0
			c := newClient(t, kazahana.WithTimeout(test.timeout), registered(t, func(p *peer) {
				p.ask(1, "Activate", "1", 1)
				p.expect(1, "")
				close(ready)
				for m := p.Next(); m != nil; m = p.Next() {
					if m.Method == "Placement.Check" {
						checks++
						time.Sleep(30 * time.Millisecond)
					}
					p.Reply(m.ID, map[string]any{"valid_ms": test.valid})
				}
			}))
			r := mustRegister(t, c, newStage(t).executor("room"))
			<-ready
			a := only(t, r)
			for range 2 {
				err := a.Check(t.Context())
				var ended *ActivationEndedError
				if errors.As(err, &ended); test.want == "" && err != nil || test.want != "" && (ended == nil || ended.Reason != test.want) {
					t.Errorf("a promise of %d ms: %v", test.valid, err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := a.Check(ctx); test.want != "" && (!errors.Is(err, context.Canceled) || errors.Is(err, ErrActivationEnded)) {
				t.Error(err)
			}
			if err := r.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if test.want == "" && checks != 1 {
				t.Errorf("the daemon was asked %d times", checks)
			}
			expectEnded(t, a.Check(t.Context()), "disconnected")
		})
	}
}

// A passivated actor is over, with any earlier promise.
func TestCheckAfterPassivate(t *testing.T) {
	checked, passivated := make(chan struct{}), make(chan struct{})
	c := newClient(t, registered(t, func(p *peer) {
		p.ask(1, "Activate", "1", 1)
		p.expect(1, "")
		if m := p.Next(); m != nil { // the check
			p.Reply(m.ID, map[string]any{"valid_ms": 60_000})
		}
		<-checked
		p.ask(2, "Passivate", "1", 1)
		p.expect(2, "a snapshot of 65537 bytes")
		close(passivated)
	}))
	s := newStage(t)
	s.passivates(func(ctx context.Context, a *Activation) ([]byte, error) {
		if err := a.Check(ctx); err != nil { // a promise stays a promise
			t.Error(err)
		}
		return make([]byte, MaxSnapshot+1), nil
	})
	r := mustRegister(t, c, s.executor("room"))
	a := only(t, r)
	if err := a.Check(t.Context()); err != nil {
		t.Error(err)
	}
	close(checked)
	<-passivated
	expectEnded(t, a.Check(t.Context()), "passivated")
}

// only waits for the activation of an Executor that is to have one.
func only(t *testing.T, r *Registration) *Activation {
	t.Helper()
	eventually(t, "the activation", func() error {
		if n := len(r.Activations()); n != 1 {
			return errors.New("there is none")
		}
		return nil
	})
	return r.Activations()[0]
}

// A registration without an answer is made again, and the actors from it have ended.
func TestRegistersUntilItIsHeard(t *testing.T) {
	s := newStage(t)
	c := newClient(t, scripted(t, func(conn net.Conn) {
		p := newPeer(t, conn)
		if p.Next() != nil {
			p.ask(1, "Activate", "1", 1)
			p.expect(1, "")
		}
	}, func(conn net.Conn) { accept(t, conn, func(*peer) {}) }))
	r := mustRegister(t, c, s.executor("room"))
	s.expect(`activate room/1 v1 ""`, `ended room/1 v1 ""`)
	if all := r.Activations(); len(all) != 0 {
		t.Error(all)
	}
}

// A registration that is refused when it is made again is tried until it is not.
func TestRegistersAgainUntilItIsNotRefused(t *testing.T) {
	lost, ready := make(chan struct{}), make(chan struct{})
	refusing := clienttest.Refusing(clienttest.Text("PLACEMENT_NOT_READY", "not yet", "state", "not_ready"))
	c := newClient(t, scripted(t,
		func(conn net.Conn) {
			accept(t, conn, func(*peer) {
				<-lost
				_ = conn.Close()
			})
		},
		refusing, refusing, refusing,
		func(conn net.Conn) {
			<-ready
			accept(t, conn, func(*peer) {})
		},
	))
	r := mustRegister(t, c, newStage(t).executor("room"))
	close(lost)
	eventually(t, "the refusal", func() error {
		var not *NotReadyError
		if err := r.Err(); !errors.As(err, &not) {
			return fmt.Errorf("the error is %v", err)
		}
		return nil
	})
	close(ready)
	eventually(t, "the registration", r.Err)
}
