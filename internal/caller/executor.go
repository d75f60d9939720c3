package caller

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/address"
	"github.com/kazahana/kazahana/internal/wire"
)

// A Resolution is where an actor lives.
type Resolution struct {
	Kind       string `json:"kind"`
	Identity   string `json:"identity"`
	Authority  string `json:"authority"`
	Locality   string `json:"locality"`
	PID        string `json:"pid"`
	Version    int64  `json:"version"`
	Token      int64  `json:"token"`
	ObservedMS int64  `json:"observed_ms"`
}

// IsLocal reports whether the actor lives on the daemon's host.
func (r Resolution) IsLocal() bool { return r.Locality == "local" }

// Resolve asks where an actor lives, and waits for its activation at most so long.
func (c *Client) Resolve(ctx context.Context, kind, identity string, wait time.Duration) (r Resolution, err error) {
	err = c.Call(ctx, "Placement.Resolve", &r, kind, identity, map[string]any{"wait_ms": wait.Milliseconds()})
	return r, err
}

// An Actor is what the daemon asks an Executor to activate or to passivate.
type Actor struct {
	Kind     string `json:"kind"`
	Identity string `json:"identity"`
	Version  int64  `json:"version"`
	Token    int64  `json:"token"`
}

// Executor runs actors as the daemon wants, until the connection is lost.
type Executor struct{ conn *wire.Client }

// Register registers an Executor for the kinds. activate returns the process's name for an
// actor, by default the process ID, and passivate its snapshot, by default none. They run in
// goroutines of their own.
func Register(ctx context.Context, socket string, kinds []string, activate func(Actor) (pid string, err error), passivate func(Actor) (snapshot []byte)) (*Executor, error) {
	nc, err := address.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	conn := wire.NewToldClient(nc, func(conn *wire.Client, r *wire.Request) {
		if r.Type != wire.TypeRequest {
			return
		}
		id, method := r.ID, string(r.Method)
		var actor Actor
		err := r.Decode(&actor)
		go func() {
			answer := map[string]any{}
			switch {
			case err != nil:
			case method == "Activate":
				pid := strconv.Itoa(os.Getpid())
				if activate != nil {
					pid, err = activate(actor)
				}
				answer["pid"] = pid
			case method == "Passivate":
				answer["snapshot"] = nil
				if passivate != nil {
					answer["snapshot"] = passivate(actor)
				}
			default:
				err = fmt.Errorf("there is no method %q", method)
			}
			_ = conn.Answer(id, answer, err) // without a connection no one waits for it
		}()
	})
	if err := conn.Call(ctx, "Placement.Register", nil, kinds); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &Executor{conn}, nil
}

// Done returns a channel that is closed when the connection is lost.
func (e *Executor) Done() <-chan struct{} { return e.conn.Done() }

// Close has the actors passivated, and ends the connection.
func (e *Executor) Close(ctx context.Context) error {
	err := e.conn.Call(ctx, "Placement.Unregister", nil)
	_ = e.conn.Close()
	return err
}
