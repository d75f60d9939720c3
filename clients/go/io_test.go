//go:build go1.25

package kazahana

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/clients/go/internal/clienttest"
)

// unlocked is a connection that fails the test if a lock of the client is held during its
// calls.
type unlocked struct {
	net.Conn
	check func(what string)
}

func (u unlocked) Read(b []byte) (int, error)  { u.check("Read"); return u.Conn.Read(b) }
func (u unlocked) Write(b []byte) (int, error) { u.check("Write"); return u.Conn.Write(b) }
func (u unlocked) Close() error                { u.check("Close"); return u.Conn.Close() }

// No lock is held while the client connects, reads, writes or closes.
func TestNoLockIsHeldDuringIO(t *testing.T) {
	var c *Client
	free := func(what string, lock *sync.Mutex) {
		taken := make(chan struct{})
		go func() {
			lock.Lock()
			defer lock.Unlock()
			close(taken)
		}()
		select {
		case <-taken:
		case <-time.After(patience):
			panic("a lock is held during " + what) // the test would hang
		}
	}
	check := func(what string) {
		free(what, &c.mu)
		if c.ahead != nil {
			free(what, &c.ahead.mu)
		}
	}
	servers := []script{cutAfter(), number(7)}
	c = newClient(t, WithDialer(func(context.Context) (net.Conn, error) {
		check("Dial")
		near, far := net.Pipe()
		serve := servers[0]
		if len(servers) > 1 {
			servers = servers[1:]
		}
		go func() {
			defer far.Close()
			serve(far)
		}()
		return unlocked{near, check}, nil
	}))
	for range 3 {
		if id, err := c.NextID(t.Context()); err != nil || id != 7 {
			t.Error(id, err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A fetch that fails, fails the call that made it, however that shows. A call that waited for it
// makes another one in its own time.
func TestAFetchFailsOnlyWhoMadeIt(t *testing.T) {
	refusing := func(after time.Duration, code Code) func(*peer, *message) bool {
		return func(p *peer, m *message) bool {
			time.Sleep(after)
			return p.Refuse(m.ID, text(code, "no"))
		}
	}
	for what, test := range map[string]struct {
		answer func(*peer, *message) bool // nil: there is no daemon
		until  time.Duration              // then comes a daemon that answers
		want   error
	}{
		"silent":   {func(*peer, *message) bool { return true }, 1, ErrTimeout},
		"slow":     {refusing(DefaultTimeout-200*time.Millisecond, ErrTimeout), 1, ErrTimeout},
		"stopping": {refusing(0, ErrShuttingDown), DefaultTimeout, ErrShuttingDown},
		"away":     {nil, 11 * time.Second, ErrDaemonUnavailable},
		"gone":     {nil, time.Hour, ErrDaemonUnavailable},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				connect := clienttest.Scripted(t, answering(func(p *peer, m *message) bool {
					if time.Since(began) >= test.until {
						return p.Reply(m.ID, []any{1, 2, 3, 4})
					}
					return test.answer != nil && test.answer(p, m)
				}))
				c := newClient(t, WithPrefetch(4, 0), WithDialer(func(ctx context.Context) (net.Conn, error) {
					// It was there once: a daemon that never was is given up sooner.
					if since := time.Since(began); test.answer == nil && since > 0 && since < test.until {
						return nil, errors.New("nobody there")
					}
					return connect(ctx)
				}))
				early := make(chan error, 1)
				go func() {
					_, err := c.NextID(t.Context())
					early <- err
				}()
				time.Sleep(DefaultTimeout / 2)
				joined := time.Now()
				id, err := c.NextID(t.Context())
				switch took := time.Since(joined); {
				case test.until > 2*DefaultTimeout:
					if !errors.Is(err, test.want) || took != DefaultTimeout {
						t.Errorf("the one who joined late got %d, %v after %v", id, err, took)
					}
				case err != nil || id != 1:
					t.Errorf("the one who joined late got %d, %v after %v", id, err, took)
				}
				if err := <-early; !errors.Is(err, test.want) {
					t.Errorf("the first one got %v", err)
				}
			})
		})
	}
}
