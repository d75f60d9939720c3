package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/internal/boottime"
	"github.com/kazahana/kazahana/clients/go/internal/twoway"
)

const (
	// MaxSnapshot is the maximum size of a snapshot in bytes.
	MaxSnapshot = 64 << 10

	// answerTime is how long the daemon waits for the answer to a request.
	answerTime = 5 * time.Second
	// The pause before a refused registration is tried again doubles from one to the
	// other.
	minRegisterPause = 5 * time.Millisecond
	maxRegisterPause = time.Second
)

// An Executor runs the actors of some kinds. Calls for one actor come one after another,
// in the order of the daemon's requests; calls for different actors are concurrent. Their
// contexts end when the daemon stops waiting: 5 s after its request, or with the
// connection.
type Executor struct {
	// Kinds are the kinds of actors: 1 to 64 of them.
	Kinds []string
	// Activate starts the actor, and returns the process's name for it, up to 256 bytes;
	// empty means the process ID. Callers that resolve the actor get the text of an
	// error.
	Activate func(ctx context.Context, a *Activation) (pid string, err error)
	// Passivate stops the actor, and returns the Snapshot of the next activation, on any
	// host: up to MaxSnapshot bytes. With nil, or after an error, the old snapshot stays;
	// the activation is over in any case. May be nil.
	Passivate func(ctx context.Context, a *Activation) (snapshot []byte, err error)
	// Ended is called when an activation is over without Passivate: the connection is
	// lost, or it is too late for Passivate. The actor must stop. May be nil.
	Ended func(a *Activation)
}

// A Registration makes an Executor work until Close. After a loss of the daemon, which
// ends all activations, it registers again by itself.
type Registration struct {
	executor Executor
	client   *kazahana.Client // for its options: its end does not matter
	life     context.Context  // ends with Close
	stop     context.CancelFunc
	keeping  sync.WaitGroup
	work     sync.WaitGroup // calls of the Executor's functions

	mu        sync.Mutex
	conn      *twoway.Conn // that was registered last
	authority string
	err       error // why this process is not registered
	closed    bool
	jobs      map[actor][]func() // pending, in this order; an entry exists while a job runs
	live      map[actor]*Activation
}

type actor struct{ kind, identity string }

// Register makes an Executor work for the daemon of this host, and returns when the daemon
// has accepted it. The Registration has a connection and goroutines of its own, which its
// Close ends; closing the Client does not.
func (p *Placement) Register(ctx context.Context, e Executor) (*Registration, error) {
	if e.Activate == nil {
		return nil, invalid("an Executor without Activate")
	}
	r := &Registration{executor: e, client: p.client, jobs: map[actor][]func(){}, live: map[actor]*Activation{}}
	r.executor.Kinds = slices.Clone(e.Kinds)
	r.life, r.stop = context.WithCancel(context.Background())
	if err := r.register(ctx); err != nil {
		r.stop()
		r.work.Wait()
		return nil, err
	}
	r.keeping.Add(1)
	go r.keep()
	return r, nil
}

func (r *Registration) register(ctx context.Context) error {
	defer r.sweep()
	var answer struct {
		Authority string `json:"authority"`
	}
	conn, err := New(r.client).open(ctx, r.asked, "Placement.Register", &answer, r.executor.Kinds)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conn, r.authority, r.err = conn, answer.Authority, nil
	return nil
}

// keep registers again whenever the connection is lost.
func (r *Registration) keep() {
	defer r.keeping.Done()
	for {
		select {
		case <-r.conn.Done():
		case <-r.life.Done():
			return
		}
		r.failed(r.conn.Err())
		_ = r.conn.Close()
		r.sweep()
		for pause := minRegisterPause; ; pause = min(2*pause, maxRegisterPause) {
			err := r.register(r.life)
			if err == nil {
				break
			}
			r.failed(err)
			select {
			case <-time.After(pause):
			case <-r.life.Done():
				return
			}
		}
	}
}

func (r *Registration) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// sweep ends the activations of lost connections.
func (r *Registration) sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, a := range r.live {
		if a.conn.Err() != nil && a.over() {
			r.queue(key, func() { r.end(a) })
		}
	}
}

// queue adds the job after the actor's other jobs. mu is held.
func (r *Registration) queue(key actor, job func()) {
	jobs, busy := r.jobs[key]
	r.jobs[key] = append(jobs, job)
	if !busy {
		r.work.Add(1)
		go r.doJobs(key)
	}
}

func (r *Registration) doJobs(key actor) {
	defer r.work.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.jobs[key]) > 0 {
		job := r.jobs[key][0]
		r.jobs[key] = r.jobs[key][1:]
		r.mu.Unlock()
		job()
		r.mu.Lock()
	}
	delete(r.jobs, key)
}

// order is a request from the daemon.
type order struct {
	Kind     string `json:"kind"`
	Identity string `json:"identity"`
	Version  int64  `json:"version"`
	Token    int64  `json:"token"`
	Snapshot []byte `json:"snapshot"`
}

func (o order) actor() actor { return actor{o.Kind, o.Identity} }

// asked handles messages from the daemon.
func (r *Registration) asked(conn *twoway.Conn, m *twoway.Message) {
	if !m.IsRequest {
		return
	}
	deadline := time.Now().Add(answerTime)
	var o order
	err := m.Decode(&o)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue(o.actor(), func() {
		var result any
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		go func() {
			select {
			case <-conn.Done():
				cancel()
			case <-ctx.Done():
			}
		}()
		switch {
		case err != nil:
		case m.Method == "Activate":
			result, err = r.activate(ctx, conn, o)
		case m.Method == "Passivate":
			result, err = r.passivate(ctx, o)
		default:
			err = &kazahana.Error{Code: kazahana.ErrUnknownMethod, Message: fmt.Sprintf("this client has no method %q", m.Method)}
		}
		_ = conn.Answer(m, result, err) // without a connection no one waits for it
	})
}

func (r *Registration) activate(ctx context.Context, conn *twoway.Conn, o order) (any, error) {
	if ctx.Err() != nil {
		return nil, errors.New("the actor was busy for too long to be activated")
	}
	r.end(r.find(o.actor())) // an activation that the daemon does not know
	a := &Activation{Kind: o.Kind, Identity: o.Identity, Version: o.Version, Token: o.Token, Snapshot: o.Snapshot, conn: conn, timeout: r.client.Timeout()}
	pid, err := r.executor.Activate(ctx, a)
	if err != nil {
		a.over()
		return nil, err
	}
	r.mu.Lock()
	r.live[o.actor()] = a
	r.mu.Unlock()
	if conn.Err() != nil {
		r.end(a) // sweep may have run before it was there
	}
	return map[string]any{"pid": cmp.Or(pid, strconv.Itoa(os.Getpid()))}, nil
}

func (r *Registration) passivate(ctx context.Context, o order) (any, error) {
	answer := map[string]any{"snapshot": nil}
	a := r.find(o.actor())
	switch {
	case a == nil || a.Token != o.Token:
		return answer, nil
	case ctx.Err() != nil:
		r.end(a)
		return nil, ctx.Err()
	}
	var snapshot []byte
	var err error
	if r.executor.Passivate != nil {
		snapshot, err = r.executor.Passivate(ctx, a)
	}
	r.forget(a)
	if n := len(snapshot); err == nil && n > MaxSnapshot {
		err = fmt.Errorf("a snapshot of %d bytes: at most %d are allowed", n, MaxSnapshot)
	}
	if snapshot != nil {
		answer["snapshot"] = snapshot
	}
	return answer, err
}

func (r *Registration) find(key actor) *Activation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live[key]
}

// forget reports whether the activation was still there.
func (r *Registration) forget(a *Activation) bool {
	a.over()
	r.mu.Lock()
	defer r.mu.Unlock()
	key := actor{a.Kind, a.Identity}
	if r.live[key] != a {
		return false
	}
	delete(r.live, key)
	return true
}

// end calls Ended for an activation, once. The actor's job calls it.
func (r *Registration) end(a *Activation) {
	if a != nil && r.forget(a) && r.executor.Ended != nil {
		r.executor.Ended(a)
	}
}

// Authority is the host:port of the daemon as a member.
func (r *Registration) Authority() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.authority
}

// Err says why this process is not registered at the moment, or nil.
func (r *Registration) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Activations returns the activations of this process, sorted by kind and identity.
func (r *Registration) Activations() []*Activation {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*Activation, 0, len(r.live))
	for _, a := range r.live {
		if _, err := a.known(); err == nil {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *Activation) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Identity, b.Identity))
	})
	return all
}

// Close passivates all activations, so that their snapshots are kept, for as long as ctx
// and the Client's timeout allow, and calls Ended for the rest. It returns when the
// Executor's functions have returned, for which it waits 5 s more. The error says which
// part failed. Only the first call has an effect.
func (r *Registration) Close(ctx context.Context) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	r.stop()
	r.mu.Unlock()
	r.keeping.Wait()
	var err error
	if r.conn.Err() == nil {
		ctx, cancel := context.WithTimeout(ctx, r.client.Timeout())
		defer cancel()
		err = r.conn.Call(ctx, "Placement.Unregister", nil)
	}
	_ = r.conn.Close()
	r.sweep()
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		r.work.Wait()
	}()
	timer := time.NewTimer(answerTime)
	defer timer.Stop()
	select {
	case <-idle:
		return err
	case <-timer.C:
		return errors.Join(err, errors.New("kazahana: Close: functions of the Executor have not returned"))
	}
}

// An Activation is one life of an actor in this process. Its fields do not change.
type Activation struct {
	Kind, Identity string
	Version        int64  // number of the actor's activation, from 1 on
	Token          int64  // fencing token: greater than every earlier activation's
	Snapshot       []byte // last result of Passivate; empty: none

	conn    *twoway.Conn
	timeout time.Duration

	mu    sync.Mutex
	until time.Duration // end of the daemon's promise, on a clock that counts suspend
	ended bool
}

// over marks the activation as over, and reports whether it was not over before.
func (a *Activation) over() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.ended
	a.ended = true
	return !before
}

// known says why the activation is over, or that the daemon's promise holds.
func (a *Activation) known() (promised bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch lost := a.conn.Err(); {
	case lost != nil:
		return false, a.doubt("disconnected", lost)
	case a.ended:
		return false, a.doubt("passivated", nil)
	}
	return boottime.Now() < a.until, nil
}

func (a *Activation) doubt(reason string, err error) error {
	return &ActivationEndedError{a.Kind, a.Identity, reason, err}
}

// Check returns nil if the activation is valid now. It returns at once while an earlier
// promise of the daemon lasts, some seconds; otherwise it asks for a new one. Call it
// before each action that only one process may do. No promise can stop a process that was
// paused, so stores should compare the Token, too.
//
// The error is an *ActivationEndedError, also if the daemon does not answer in time, or
// context.Canceled. Within Passivate, too, Check may fail.
func (a *Activation) Check(ctx context.Context) error {
	promised, err := a.known()
	if promised || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	for !promised && err == nil {
		if err = a.ask(ctx); err == nil {
			promised, err = a.known()
		}
	}
	return err
}

// ask asks the daemon for a promise, which counts from before the request.
func (a *Activation) ask(ctx context.Context) error {
	sent := boottime.Now()
	var answer struct {
		ValidMS int64 `json:"valid_ms"`
	}
	err := a.conn.Call(ctx, "Placement.Check", &answer, a.Kind, a.Identity, a.Token)
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, ErrActivationEnded):
		return a.doubt("refused", err)
	case err != nil:
		return a.doubt("unanswered", err)
	case answer.ValidMS <= 0:
		return a.doubt("refused", nil)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until = max(a.until, sent+time.Duration(answer.ValidMS)*time.Millisecond)
	return nil
}
