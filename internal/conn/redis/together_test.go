package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// Many commands that wait for the server together get an answer each, their own; what its
// caller has given up before it was sent is not sent.
func TestProcessTogether(t *testing.T) {
	server := redistest.New(t)
	client, err := redisconn.Open(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	do := func(ctx context.Context, words ...any) (any, error) {
		return redisconn.RunAnywhere(ctx, client, redisconn.Repeatable, func(ctx context.Context, _ redis.Cmdable) (any, error) {
			cmd := redis.NewCmd(ctx, words...)
			client.Process(ctx, cmd)
			return cmd.Result()
		})
	}
	const many, gone = 300, 50
	server.Signal(syscall.SIGSTOP)
	defer server.Signal(syscall.SIGCONT)
	var all, left sync.WaitGroup
	for i := range many {
		all.Go(func() {
			word := fmt.Sprint("word ", i)
			if i%10 == 3 { // an error is nobody else's
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
		for client.Waiting() != n {
			time.Sleep(time.Millisecond)
		}
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
