package redis

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// receive waits for a token.
func receive(t *testing.T, tokens <-chan struct{}) {
	t.Helper()
	select {
	case _, open := <-tokens:
		if !open {
			t.Fatal("the channel was closed")
		}
	case <-time.After(redistest.StartTimeout):
		t.Fatal("nothing tells of the release")
	}
}

// ended waits until the channel is closed.
func ended(t *testing.T, tokens <-chan struct{}) {
	t.Helper()
	deadline := time.After(redistest.StartTimeout)
	for {
		select {
		case _, open := <-tokens:
			if !open {
				return
			}
		case <-deadline:
			t.Fatal("the channel is not closed")
		}
	}
}

func subscribers(t *testing.T, s *redistest.Server) int {
	t.Helper()
	return strings.Count(s.Do(t, "CLIENT", "LIST", "TYPE", "PUBSUB"), "id=")
}

func wait(t *testing.T, r *rig, ctx context.Context, key string) <-chan struct{} {
	t.Helper()
	tokens, err := r.store.Notify(ctx, "t", key)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

// All waiters of a client share one connection, which is there as long as one of
// them is; each hears of its own key, whichever client released it.
func TestNotify(t *testing.T) {
	server := redistest.New(t)
	r := newRig(t, server)
	ctx, cancel := context.WithCancel(testContext(t))
	rest, cancelRest := context.WithCancel(testContext(t))
	a1, a2, b := wait(t, r, ctx, "a"), wait(t, r, rest, "a"), wait(t, r, rest, "b")
	if n := subscribers(t, server); n != 1 {
		t.Errorf("%d connections are subscribed, want 1", n)
	}
	other := r.on(server)
	release := func(key string) {
		t.Helper()
		r.do(r.acquire(key, time.Minute))
		if _, err := other.Do(testContext(t), r.request(lock.Release, key, "alice", 0)); err != nil {
			t.Fatal(err)
		}
	}
	release("a")
	receive(t, a1)
	receive(t, a2)
	release("b")
	receive(t, b)
	if len(a1)+len(a2) > 0 {
		t.Error("a release of another key is told")
	}
	cancel()
	ended(t, a1)
	release("a")
	receive(t, a2)
	again := wait(t, r, rest, "a")
	release("a")
	receive(t, a2)
	receive(t, again)
	cancelRest()
	ended(t, a2)
	ended(t, b)
	redistest.Eventually(t, "the connection is closed", func() error {
		if subscribers(t, server) != 0 {
			return errors.New("it is there")
		}
		return nil
	})
	last := wait(t, r, testContext(t), "c")
	release("c")
	receive(t, last)
	if err := r.store.Close(); err != nil {
		t.Error(err)
	}
	ended(t, last)
	if _, err := r.store.Notify(testContext(t), "t", "c"); err == nil {
		t.Error("a closed store notifies")
	}
}

// Whoever waits while its key's subscription comes and goes hears of the next
// release all the same.
func TestNotifyComesAndGoes(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	wait(t, r, testContext(t), "keeps the connection")
	for range 200 {
		ctx, cancel := context.WithCancel(testContext(t))
		tokens := wait(t, r, ctx, "a")
		r.locked("a", time.Minute)
		receive(t, tokens)
		cancel()
	}
}

// After a lost connection, or on a server that says nothing, waiters are told
// that nobody tells them; the next one is served again.
func TestNotifyConnectionLost(t *testing.T) {
	server := redistest.New(t)
	r := newRig(t, server)
	tokens := wait(t, r, testContext(t), "a")
	server.Do(t, "CLIENT", "KILL", "TYPE", "PUBSUB")
	ended(t, tokens)
	tokens = wait(t, r, testContext(t), "a")
	r.locked("a", time.Minute)
	receive(t, tokens)

	server.Signal(syscall.SIGSTOP)
	ended(t, tokens)
	ctx, cancel := context.WithTimeout(testContext(t), 100*time.Millisecond)
	defer cancel()
	if _, err := r.store.Notify(ctx, "t", "a"); err == nil || lock.IsAnswer(err) {
		t.Errorf("a frozen server: %v", err)
	}
	server.Signal(syscall.SIGCONT)
	tokens = wait(t, r, testContext(t), "a")
	r.locked("a", time.Minute)
	receive(t, tokens)
	server.Kill()
	ended(t, tokens)
}
