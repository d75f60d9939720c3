//go:build go1.25

package kazahana

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/clients/go/internal/msgpack"
)

// expectLost waits for the loss and returns why.
func expectLost(t *testing.T, l *Lock) *LockLostError {
	t.Helper()
	select {
	case <-l.Lost():
	case <-time.After(patience):
		t.Fatal("the lock is not lost")
	}
	var lost *LockLostError
	if err := l.Err(); !errors.As(err, &lost) || !errors.Is(err, ErrLockLost) {
		t.Fatalf("lost by %v", err)
	}
	return lost
}

func mustLock(t *testing.T, c *Client, key string, opts LockOptions) *Lock {
	t.Helper()
	l, err := c.Lock(t.Context(), key, opts)
	for errors.Is(err, ErrLockExpired) && t.Context().Err() == nil {
		l, err = c.Lock(t.Context(), key, opts) // the machine was too busy for so short a term
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Release(t.Context()) })
	return l
}

func TestLock(t *testing.T) {
	d := newDaemon(t)
	c := d.client()
	first := mustLock(t, c, "k", LockOptions{})
	if first.Key() != "k" || first.Token() < 1 || first.LeaseID() == "" || first.OwnerID() == "" || first.Err() != nil {
		t.Errorf("%+v", first.lease)
	}
	var held *LockHeldError
	if _, err := c.Lock(t.Context(), "k", LockOptions{}); !errors.As(err, &held) || held.Owner != first.OwnerID() || held.RetryAfter <= 0 {
		t.Errorf("taken twice: %v", err)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Errorf("the second release: %v", err)
	}
	second := mustLock(t, c, "k", LockOptions{})
	if second.Token() <= first.Token() {
		t.Errorf("token %d after %d", second.Token(), first.Token())
	}
	waited := make(chan error, 1)
	go func() {
		third, err := c.Lock(t.Context(), "k", LockOptions{Wait: patience})
		if err == nil {
			err = third.Release(t.Context())
		}
		waited <- err
	}()
	if err := second.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("the one in line: %v", err)
	}
	select {
	case <-first.Lost():
		t.Error("a release is a loss")
	default:
	}
}

// The daemon renews: a lock outlives its term.
func TestLockOutlivesItsTerm(t *testing.T) {
	c := newDaemon(t).client()
	l := mustLock(t, c, "k", LockOptions{TTL: 30 * time.Second})
	var first, now struct {
		ExpiresAt string `json:"expires_at"`
	}
	get := func(target any) {
		t.Helper()
		if err := c.Call(t.Context(), "Lock.Get", target, "k"); err != nil {
			t.Fatal(err)
		}
	}
	get(&first)
	for end := time.Now().Add(patience); now.ExpiresAt <= first.ExpiresAt; time.Sleep(10 * time.Millisecond) {
		if get(&now); time.Now().After(end) {
			t.Fatalf("it still ends at %s", now.ExpiresAt)
		}
	}
	if err := l.Err(); err != nil {
		t.Error(err)
	}
	if _, err := c.Lock(t.Context(), "k", LockOptions{}); !errors.Is(err, ErrLockHeld) {
		t.Error(err)
	}
}

func TestLockLostWithTheDaemon(t *testing.T) {
	d := newDaemon(t)
	l := mustLock(t, d.client(), "k", LockOptions{})
	d.Kill()
	if lost := expectLost(t, l); lost.Key != "k" || lost.Reason != "disconnected" {
		t.Error(lost)
	}
	if err := l.Release(t.Context()); !errors.Is(err, ErrLockLost) {
		t.Errorf("the release of a lost lock: %v", err)
	}
}

// A daemon that hangs renews nothing and says nothing.
func TestLockLostWhenTheDaemonHangs(t *testing.T) {
	d := newDaemon(t)
	l := mustLock(t, d.client(), "k", LockOptions{TTL: 2 * time.Second})
	if err := d.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Cmd.Process.Signal(syscall.SIGCONT) }()
	if lost := expectLost(t, l); lost.Reason != "expired" {
		t.Error(lost)
	}
}

// A release by the lease's name is a loss to the caller that thinks that it holds it.
func TestLockReleasedBehindItsBack(t *testing.T) {
	c := newDaemon(t).client()
	l := mustLock(t, c, "k", LockOptions{TTL: 30 * time.Second})
	if err := c.Call(t.Context(), "Lock.Release", nil, "k", map[string]any{"lease_id": l.LeaseID()}); err != nil {
		t.Fatal(err)
	}
	expectLost(t, l)
}

func TestWrongLocks(t *testing.T) {
	c := newDaemon(t).client()
	for _, opts := range []LockOptions{{TTL: time.Nanosecond}, {TTL: -time.Second}, {TTL: 100 * time.Hour}, {Wait: -1}} {
		if _, err := c.Lock(t.Context(), "k", opts); !errors.Is(err, ErrInvalidParams) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	missing := newClient(t, WithSocket(os.TempDir()+"/kz-no-such.sock"))
	if _, err := missing.Lock(t.Context(), "k", LockOptions{}); !errors.Is(err, ErrDaemonUnavailable) {
		t.Error(err)
	}
}

// granting answers a lock's calls with a lease, and leaves the others to the function.
func granting(id string, expiresInMS int, others func(net.Conn, *peer, *message) bool) script {
	held := map[string]any{"lock_key": "k", "lease_id": id, "fencing_token": 1, "state": "ACTIVE", "expires_in_ms": expiresInMS}
	return func(conn net.Conn) {
		answering(func(p *peer, m *message) bool {
			if m.Method == "Lock.Acquire" || m.Method == "Lock.Watch" && id != "lost" {
				return p.Reply(m.ID, held)
			}
			return others(conn, p, m)
		})(conn)
	}
}

// The loss of a lease that an earlier attempt was granted is none of the present one.
func TestLossOfAnEarlierAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		notice, err := msgpack.Append(nil, []any{2, "Lock.Lost", []any{map[string]any{"lease_id": "lost", "reason": "expired"}}})
		if err != nil {
			t.Fatal(err)
		}
		checked := make(chan struct{})
		c := newClient(t, scripted(t,
			granting("lost", 60_000, func(conn net.Conn, p *peer, m *message) bool {
				_, err := conn.Write(notice)
				return err == nil && p.Refuse(m.ID, text(ErrLockExpired, "its term is over"))
			}),
			granting("held", 60_000, func(_ net.Conn, p *peer, m *message) bool {
				if m.Method == "Lock.Get" {
					close(checked)
				}
				return p.Reply(m.ID, map[string]any{"lease_id": "held", "state": "ACTIVE", "expires_in_ms": 60_000})
			})))
		l := mustLock(t, c, "k", LockOptions{TTL: time.Minute})
		select {
		case <-checked:
		case <-l.Lost():
			t.Errorf("the lease %s is lost: %v", l.LeaseID(), l.Err())
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A message that is cut ends the connection: nothing that follows can be read.
func TestLockWithACutMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := map[string]any{"lease_id": "held", "fencing_token": 1, "state": "ACTIVE", "expires_in_ms": 60_000}
		l := mustLock(t, newClient(t, scripted(t, func(conn net.Conn) {
			answering(func(p *peer, m *message) bool {
				ok := p.Reply(m.ID, held)
				if m.Method == "Lock.Watch" {
					_, _ = conn.Write([]byte{0x93, 2}) // of a notification
				}
				return ok
			})(conn)
		})), "k", LockOptions{TTL: time.Minute})
		if lost := expectLost(t, l); lost.Reason != "disconnected" {
			t.Error(lost)
		}
	})
}

// Near the end of what the daemon has confirmed, the lock is checked at that end, and not a
// third of the term later.
func TestLockIsCheckedAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const left = time.Minute
		checks := make(chan time.Time, 3)
		l := mustLock(t, newClient(t, scripted(t, granting("held", int(left.Milliseconds()), func(_ net.Conn, p *peer, m *message) bool {
			if m.Method != "Lock.Get" {
				return p.Reply(m.ID, nil)
			}
			checks <- time.Now()
			return p.Reply(m.ID, map[string]any{"lease_id": "held", "state": "ACTIVE", "expires_in_ms": left.Milliseconds()})
		}))), "k", LockOptions{TTL: time.Hour})
		last := time.Now()
		for range cap(checks) {
			now := <-checks
			if pause := now.Sub(last); pause > left {
				t.Errorf("a check after %v, with %v left", pause, left)
			}
			last = now
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Past the end of the term as it is known here, the daemon may still hold the lock: its
// answer to a release says so, and not the check that the release cuts off.
func TestReleaseDuringACheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checking := make(chan struct{})
		l := mustLock(t, newClient(t, scripted(t, granting("held", 0, func(_ net.Conn, p *peer, m *message) bool {
			if m.Method == "Lock.Get" {
				close(checking)
				return true
			}
			return p.Reply(m.ID, nil)
		}))), "k", LockOptions{TTL: time.Hour})
		<-checking
		if err := l.Release(t.Context()); err != nil || l.Err() != nil {
			t.Errorf("%v, %v", err, l.Err())
		}
	})
}
