package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// open starts a server, and returns a client of it.
func open(t *testing.T) (*redistest.Server, *redisconn.Client) {
	t.Helper()
	server := redistest.New(t)
	client, err := redisconn.Open(server.Config())
	must.Succeed(t, err)
	t.Cleanup(func() { must.Succeed(t, client.Close()) })
	return server, client
}

func process(ctx context.Context, c *redisconn.Client, words ...any) (any, error) {
	cmd := redis.NewCmd(ctx, words...)
	if err := c.Process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.Result()
}

// Many commands that wait for the server together get an answer each, their own; what its
// caller has given up before it was sent is not sent.
func TestProcessTogether(t *testing.T) {
	server, client := open(t)
	do := func(ctx context.Context, words ...any) (any, error) {
		return redisconn.RunAnywhere(ctx, client, redisconn.Repeatable, func(ctx context.Context, _ redis.Cmdable) (any, error) {
			return process(ctx, client, words...)
		})
	}
	const many, gone = 300, 50
	server.Signal(syscall.SIGSTOP)
	defer server.Signal(syscall.SIGCONT)
	var all, left sync.WaitGroup
	for i := range many {
		all.Go(func() {
			word := fmt.Sprint("word ", i)
			if i%10 == 3 { // an error is no other command's
				if _, err := do(t.Context(), "GETRANGE", word); err == nil {
					t.Errorf("%d got no error", i)
				}
				return
			}
			if got, err := do(t.Context(), "ECHO", word); err != nil || got != word {
				t.Errorf("%d got %v (%v)", i, got, err)
			}
		})
	}
	waiting := func(n int) {
		t.Helper()
		await.Eventually(t, "commands wait", func() bool { return client.Waiting() == n })
	}
	waiting(many - redisconn.MaxFlights)
	ctx, leave := context.WithCancel(t.Context())
	for range gone {
		left.Go(func() {
			if _, err := do(ctx, "INCR", "n"); !errors.Is(err, context.Canceled) {
				t.Errorf("who left got %v", err)
			}
		})
	}
	waiting(many - redisconn.MaxFlights + gone)
	leave()
	left.Wait()
	server.Signal(syscall.SIGCONT)
	all.Wait()
	if n, err := do(t.Context(), "EXISTS", "n"); err != nil || n != int64(0) {
		t.Errorf("commands of callers who had left were sent: %v (%v)", n, err)
	}
}

// An operation ends at its deadline, and when the client is closed, though
// the server hangs. What became of it is unknown.
func TestRunEnds(t *testing.T) {
	server, client := open(t)
	incr := func(ctx context.Context) error {
		_, err := redisconn.RunAnywhere(ctx, client, redisconn.Repeatable, func(ctx context.Context, _ redis.Cmdable) (any, error) {
			return process(ctx, client, "INCR", "n")
		})
		return err
	}
	must.Succeed(t, incr(t.Context()))
	server.Signal(syscall.SIGSTOP)
	defer server.Signal(syscall.SIGCONT)
	await.Late(t, "INCR", incr, func(err error) bool {
		return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, connurl.ErrNotSent)
	})
	ended := make(chan error, 1)
	go func() { ended <- incr(t.Context()) }()
	await.Eventually(t, "the command is under way", func() bool { return client.Flying() > 0 })
	must.Succeed(t, client.Close())
	if err := <-ended; !errors.Is(err, redisconn.ErrClosed) || errors.Is(err, connurl.ErrNotSent) {
		t.Errorf("when the client is closed: %v", err)
	}
	if err := incr(t.Context()); !errors.Is(err, redisconn.ErrClosed) || !errors.Is(err, connurl.ErrNotSent) {
		t.Errorf("of a closed client: %v", err)
	}
}
