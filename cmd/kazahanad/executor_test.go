package main

import (
	"context"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kazahana/kazahana/internal/caller"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// resolveWait is how long the tests wait for an activation.
const resolveWait = await.Patience

// register has a process that runs actors of the kinds, until the test ends. activate returns its
// name for an actor, or why there is none.
func register(t testing.TB, socket string, kinds []string, activate func(kind string) (pid, refusal string)) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	send := func(message ...any) error { return msgpack.NewEncoder(conn).Encode(message) }
	must.Succeed(t, send(0, 1, "Placement.Register", []any{kinds}))
	in := msgpack.NewDecoder(conn)
	var registered []any
	must.Succeed(t, in.Decode(&registered))
	if registered[2] != nil {
		t.Fatalf("not registered: %v", registered[2])
	}
	go func() {
		for {
			var asked []any
			if in.Decode(&asked) != nil {
				return
			}
			var answer, failure any
			if asked[2] == "Activate" {
				pid, refusal := activate(asked[3].([]any)[0].(map[string]any)["kind"].(string))
				if answer = map[string]any{"pid": pid}; refusal != "" {
					answer, failure = nil, refusal
				}
			} else {
				answer = map[string]any{"snapshot": nil}
			}
			if send(1, asked[1], failure, answer) != nil {
				return
			}
		}
	}()
}

// executor registers for halls and rooms with the site's daemon, and returns a client of it.
func (s *site) executor() *caller.Client {
	s.T.Helper()
	register(s.T, s.Socket, []string{"room", "hall"}, func(string) (string, string) { return strconv.Itoa(os.Getpid()), "" })
	client := caller.New(s.Socket, await.Patience)
	s.T.Cleanup(func() { _ = client.Close() })
	return client
}

// resolution is where an actor lives.
type resolution struct {
	Identity  string `json:"identity"`
	Authority string `json:"authority"`
	Locality  string `json:"locality"`
	Token     int64  `json:"token"`
}

func resolve(ctx context.Context, c *caller.Client, kind, identity string) (r resolution, err error) {
	err = c.Call(ctx, "Placement.Resolve", &r, kind, identity, map[string]any{"wait_ms": resolveWait.Milliseconds()})
	return r, err
}
