package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/driver"
)

var errTooManyKinds = errors.New("processes have registered for as many kinds as may be")

// executors are the processes that have registered for kinds of actors, each by a
// connection. They implement driver.Executor by requests to them.
type executors struct {
	mu       sync.Mutex // guards all below, and the fields of each executor
	byConn   map[*conn]*executor
	byKind   map[string]map[*executor]struct{}
	assigned map[placement.Key]assignment // also while the process is being asked
	driver   *driver.Driver               // set once, before the first connection
}

// newExecutors returns an empty registry.
func newExecutors() *executors {
	return &executors{
		byConn: map[*conn]*executor{}, byKind: map[string]map[*executor]struct{}{}, assigned: map[placement.Key]assignment{},
	}
}

// executor is one of them.
type executor struct {
	conn  *conn
	kinds []string
	keys  map[placement.Key]struct{} // assigned to it
	calls *executorCalls
}

// assignment names the executor that runs, or is to run, an activation.
type assignment struct {
	executor *executor
	token    int64
}

var (
	errNoExecutor   = fmt.Errorf("%w: the processes of its kind have gone", placement.ErrLost)
	errExecutorGone = errors.New("the process has closed its connection")
	errPIDMissing   = errors.New("the process answers Activate without a pid")
)

// register makes the connection an executor for the kinds, beside those it has,
// and returns all of them. The connection's mu is held.
func (x *executors) register(c *conn, kinds []string) ([]string, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.byConn[c]
	if err := x.room(kinds); err != nil {
		return nil, err
	}
	if e == nil {
		e = &executor{conn: c, keys: map[placement.Key]struct{}{}}
		e.calls = newExecutorCalls(c, func() {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.announce()
		})
		x.byConn[c] = e
		c.atEnd(func() { x.gone(c) })
	}
	for _, kind := range kinds {
		if !slices.Contains(e.kinds, kind) {
			e.kinds = append(e.kinds, kind)
		}
		if x.byKind[kind] == nil {
			x.byKind[kind] = map[*executor]struct{}{}
		}
		x.byKind[kind][e] = struct{}{}
	}
	x.announce()
	return slices.Clone(e.kinds), nil
}

// room reports why more kinds would be too many, nil if they are not. mu is held.
func (x *executors) room(kinds []string) error {
	names := map[string]bool{}
	for kind := range x.byKind {
		names[kind] = true
	}
	for _, kind := range kinds {
		names[kind] = true
	}
	all := 0 // bytes of an announcement
	for name := range names {
		all += len(name) + 1
	}
	if all > maxAllKinds {
		return fmt.Errorf("%w: their names would have %d bytes in all, and %d are allowed", errTooManyKinds, all, maxAllKinds)
	}
	return nil
}

// kinds returns the kinds with an executor.
func (x *executors) kinds() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	kinds := slices.AppendSeq([]string{}, maps.Keys(x.byKind)) // none is a list too
	slices.Sort(kinds)
	return kinds
}

// announce tells the driver the kinds with an executor that answers: a host with a frozen process
// would keep the actors of other kinds. mu is held.
func (x *executors) announce() {
	var kinds []string
	for kind, all := range x.byKind {
		for e := range all {
			if !e.calls.isSilent() {
				kinds = append(kinds, kind)
				break
			}
		}
	}
	x.driver.SetKinds(kinds)
}

// retire takes the executor out of the choice. mu is held.
func (x *executors) retire(e *executor) {
	for _, kind := range e.kinds {
		delete(x.byKind[kind], e)
		if len(x.byKind[kind]) == 0 {
			delete(x.byKind, kind)
		}
	}
	e.kinds = nil
}

// unregister has all that the connection runs passivated, and returns how many
// that were when nothing of them is left but their snapshots.
func (x *executors) unregister(ctx context.Context, c *conn) (int, error) {
	x.mu.Lock()
	e := x.byConn[c]
	if e == nil {
		x.mu.Unlock()
		return 0, nil
	}
	x.retire(e)
	tokens := make(map[placement.Key]int64, len(e.keys))
	for key := range e.keys {
		tokens[key] = x.assigned[key].token
	}
	x.mu.Unlock()
	var ends []<-chan placement.Done
	for key, token := range tokens {
		if gone := x.driver.Evict(key, token); gone != nil {
			ends = append(ends, gone)
		}
	}
	x.mu.Lock()
	x.announce()
	x.mu.Unlock()
	for _, gone := range ends {
		select {
		case <-gone:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	return len(ends), nil
}

// gone is called at the end of a connection: its activations have ended. The process has
// closed it, or is dead, or has been silent for the server's patience, which is longer
// than any promise of Check lasts: it relies on nothing any more.
func (x *executors) gone(c *conn) {
	x.mu.Lock()
	e := x.byConn[c]
	delete(x.byConn, c)
	x.retire(e)
	ended := make(map[placement.Key]int64, len(e.keys))
	for key := range e.keys {
		ended[key] = x.assigned[key].token
		x.unassign(key)
	}
	x.mu.Unlock()
	// First of all: a caller that hears of it by a failed call asks again, and must not be told
	// of an ended activation.
	for key, token := range ended {
		x.driver.Ended(key, token)
	}
	e.calls.close(errExecutorGone)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.announce()
}

// assign chooses an executor for an activation: the one with the fewest. An executor that does
// not answer never has any, and is asked only where there is no other.
func (x *executors) assign(key placement.Key, token int64) (*executor, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var best *executor
	for e := range x.byKind[key.Kind] {
		if best == nil || e.before(best) {
			best = e
		}
	}
	if best == nil {
		return nil, fmt.Errorf("%w: %q", errNoExecutor, key.Kind)
	}
	x.unassign(key)
	best.keys[key] = struct{}{}
	x.assigned[key] = assignment{best, token}
	return best, nil
}

// before reports whether the executor is the better choice.
func (e *executor) before(other *executor) bool {
	if silent := e.calls.isSilent(); silent != other.calls.isSilent() {
		return !silent
	}
	return len(e.keys) < len(other.keys)
}

// unassign forgets the executor of an activation. mu is held.
func (x *executors) unassign(key placement.Key) {
	if a, ok := x.assigned[key]; ok {
		delete(x.assigned, key)
		delete(a.executor.keys, key)
	}
}

// release ends an assignment, if it still belongs to the token.
func (x *executors) release(key placement.Key, token int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if a, ok := x.assigned[key]; ok && a.token == token {
		x.unassign(key)
	}
}

// activateParams and passivateParams are the parameters of the process's requests.
type activateParams struct {
	Kind     string `json:"kind"`
	Identity string `json:"identity"`
	Version  int64  `json:"version"`
	Token    int64  `json:"token"`
	Snapshot []byte `json:"snapshot"` // nil: none
}

type passivateParams struct {
	Kind     string `json:"kind"`
	Identity string `json:"identity"`
	Version  int64  `json:"version"`
	Token    int64  `json:"token"`
}

// Activate implements driver.Executor.
func (x *executors) Activate(key placement.Key, r placement.Record, within time.Duration, done func(string, error)) {
	e, err := x.assign(key, r.Token)
	if err != nil {
		done("", err)
		return
	}
	var answer struct {
		PID string `json:"pid"`
	}
	params := activateParams{key.Kind, key.Identity, r.Version, r.Token, r.Snapshot}
	wanted := func() bool {
		_, ok := x.driver.Check(key, r.Token) // it may have waited behind others
		return ok
	}
	e.calls.ask(&executorCall{method: "Activate", params: params, target: &answer, within: within, wanted: wanted, done: func(err error) {
		if err == nil && answer.PID == "" {
			err = fmt.Errorf("%w: %w", driver.ErrUnknown, errPIDMissing)
		}
		if err != nil && !errors.Is(err, driver.ErrUnknown) { // the process has refused, or is gone
			x.release(key, r.Token)
		}
		done(answer.PID, err)
	}})
}

// Passivate implements driver.Executor.
func (x *executors) Passivate(key placement.Key, r placement.Record, within time.Duration, done func([]byte, error)) {
	e := x.runs(key, r.Token)
	if e == nil {
		done(nil, errExecutorGone)
		return
	}
	var answer struct {
		Snapshot []byte `json:"snapshot"`
	}
	params := passivateParams{key.Kind, key.Identity, r.Version, r.Token}
	// A process that was too busy to read must not go on with it.
	e.calls.ask(&executorCall{method: "Passivate", params: params, target: &answer, within: within, useful: true, done: func(err error) {
		x.release(key, r.Token)
		done(answer.Snapshot, err)
	}})
}

// payer has the user pay for a snapshot that their process left behind.
func (x *executors) payer(key placement.Key, token int64) context.Context {
	if e := x.runs(key, token); e != nil {
		return e.conn.account.user.pays(context.Background())
	}
	return context.Background()
}

// runs returns the executor of a token's activation, nil for none.
func (x *executors) runs(key placement.Key, token int64) *executor {
	x.mu.Lock()
	defer x.mu.Unlock()
	if a, ok := x.assigned[key]; ok && a.token == token {
		return a.executor
	}
	return nil
}
