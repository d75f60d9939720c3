package daemon

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// defaultPlacementWait is for a Resolve that does not say how long it waits.
	defaultPlacementWait = 10 * time.Second
	maxPlacementWait     = 10 * time.Minute
	// maxKinds is how many kinds one Register may have, and maxAllKinds how
	// many bytes the names of all together may have, with a separator each: a membership
	// announces them.
	maxKinds    = 64
	maxAllKinds = lock.MaxNote
	// maxSnapshotPage is how many activations one Snapshot shows.
	maxSnapshotPage     = 1000
	defaultSnapshotPage = 100
)

// Placement is the driver behind the placement methods.
type Placement struct {
	driver    *driver.Driver
	executors *executors
	records   storage.Storage
	tenant    string // of the records
	authority string
	ttl       time.Duration
	timeout   time.Duration
	counts    *metrics.Placement
	lately    lately
}

// NewPlacement makes a driver for the placement methods: its processes are the server's peers.
func NewPlacement(cfg driver.Config, timeout time.Duration) *Placement {
	x := newExecutors()
	p := &Placement{
		executors: x, records: cfg.Records, tenant: cfg.Tenant, authority: cfg.Authority, ttl: cmp.Or(cfg.TTL, driver.DefaultTTL), timeout: timeout,
		counts: metrics.NewPlacement(),
	}
	cfg.Executor, cfg.Payer, cfg.Observe, cfg.Failed = x, x.payer, p.observe, p.counting(cfg.Failed)
	x.driver = driver.New(cfg)
	p.driver = x.driver
	return p
}

// Run is the life of the driver. It ends before the server does: the peers passivate their
// activations.
func (p *Placement) Run(ctx context.Context) error {
	p.driver.Run(ctx)
	return nil
}

// executorOf returns the executor that the connection has registered, nil if it has not.
func (s *Server) executorOf(c *conn) *executor {
	if s.cfg.Placement == nil {
		return nil
	}
	x := s.cfg.Placement.executors
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byConn[c]
}

// placing makes the method of a call that placement answers.
func placing(call func(*Placement, *responder) error) func(*Server, context.Context, *responder) error {
	return func(s *Server, _ context.Context, d *responder) error {
		if s.cfg.Placement == nil {
			return wire.Errorf(wire.CodePlacementNotReady, "placement is off: the daemon's operator can set placement_authority").With("state", "off")
		}
		return call(s.cfg.Placement, d)
	}
}

// placementError gives the code of an error of a placement method.
func placementError(err error) *wire.Error {
	switch {
	case errors.Is(err, placement.ErrPending) && lockError(err) != nil:
		return lockError(err)
	case errors.Is(err, placement.ErrPending):
		e := wire.Errorf(wire.CodePlacementPending, "%v", placement.ErrPending)
		if cause := err.Error(); cause != placement.ErrPending.Error() {
			e = e.With("cause", withoutPaths(cause))
		}
		return e
	case errors.Is(err, placement.ErrUnserved):
		return wire.Errorf(wire.CodePlacementUnserved, "%v", err)
	case errors.Is(err, placement.ErrInvalid):
		return wire.Errorf(wire.CodeInvalidParams, "%s", strings.TrimPrefix(err.Error(), placement.ErrInvalid.Error()+": "))
	}
	return nil
}

// placementKey reads the kind and the identity.
func (d *responder) placementKey() (k placement.Key, err error) {
	if d.req.NumParams() < 2 {
		return k, wire.Errorf(wire.CodeInvalidParams, "%s needs a kind and an identity", d.req.Method)
	}
	if k.Kind, err = d.text(); err != nil {
		return k, err
	}
	if k.Identity, err = d.text(); err != nil {
		return k, err
	}
	return k, k.Validate()
}

// resolution is the answer of Placement.Resolve.
type resolution struct {
	Kind       string             `json:"kind"`
	Identity   string             `json:"identity"`
	Authority  string             `json:"authority"`
	Locality   placement.Locality `json:"locality"`
	PID        string             `json:"pid"`
	Version    int64              `json:"version"`
	Token      int64              `json:"token"`
	ObservedMS int64              `json:"observed_ms"`
}

func answerResolution(r placement.Resolution) resolution {
	return resolution{r.Key.Kind, r.Key.Identity, r.Authority, r.Locality, r.PID, r.Version, r.Token, r.ObservedMS}
}

func (p *Placement) resolve(d *responder) error {
	key, err := d.placementKey()
	if err != nil {
		return err
	}
	wait, withPID := defaultPlacementWait, false
	if err := d.eachOption([]string{"wait_ms", "pid"}, func(name string) (err error) {
		if name == "wait_ms" {
			wait, err = d.milliseconds(name, maxPlacementWait)
			return err
		}
		withPID, err = d.req.Bool()
		return err
	}); err != nil {
		return err
	}
	if !withPID { // which may need a read of the store
		if r, ok := p.driver.Known(key); ok {
			p.countResolve(r, nil)
			return d.out.ReplyAny(d.req.ID, answerResolution(r))
		}
	}
	return d.aside(func(ctx context.Context) (any, error) {
		ctx, done := d.server.whileServing(ctx)
		defer done()
		resolve := p.driver.Resolve
		if withPID {
			resolve = p.driver.ResolvePID
		}
		r, err := resolve(ctx, key, wait)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		p.countResolve(r, err)
		return answerResolution(r), p.activationError(err)
	})
}

// activationError is the error of a resolve: what has no code of its own is why an
// activation has failed.
func (p *Placement) activationError(err error) error {
	if errors.Is(err, placement.ErrNotReady) {
		return wire.Errorf(wire.CodePlacementNotReady, "%v", err).With("state", p.driver.State())
	}
	if err == nil || errors.As(err, new(*record.FullError)) || errors.As(err, new(*record.StrayError)) || placementError(err) != nil ||
		errors.Is(err, placement.ErrPending) || errors.Is(err, errShuttingDown) || errors.Is(err, errHungUp) {
		return err
	}
	return wire.Errorf(wire.CodeActivationFailed, "the activation has failed").With("cause", err)
}

// checked is the answer of Placement.Check.
type checked struct {
	ValidMS int64 `json:"valid_ms"`
}

func (p *Placement) check(d *responder) error {
	if d.conn == nil {
		return errHeavy // it waits for a mutex, and no executor is on the fast path
	}
	key, err := d.placementKey()
	if err != nil {
		return err
	}
	token, err := d.req.Int64()
	if err == nil {
		err = d.req.End()
	}
	if err != nil {
		return err
	}
	// Only to whom it runs: that one is asked to let it go in good time, or is known
	// to be gone.
	e := p.executors.runs(key, token)
	valid, ok := p.driver.Check(key, token)
	if !ok || e == nil || e.conn != d.conn {
		return wire.Errorf(wire.CodeActivationEnded, "the activation of token %d has ended", token)
	}
	return d.out.ReplyAny(d.req.ID, checked{valid.Milliseconds()})
}

func (p *Placement) register(d *responder) error {
	switch {
	case d.conn == nil:
		return errHeavy
	case p.authority == "":
		return wire.Errorf(wire.CodePlacementNotReady, "this daemon only resolves: nothing is activated here").With("state", string(placement.StateClient))
	}
	n, err := d.req.ArrayLen()
	if err != nil {
		return err
	}
	if n < 1 || n > maxKinds {
		return wire.Errorf(wire.CodeInvalidParams, "%d kinds are out of range: 1 to %d", n, maxKinds)
	}
	kinds := make([]string, n)
	for i := range kinds {
		if kinds[i], err = d.text(); err == nil {
			err = placement.CheckKind(kinds[i])
		}
		if err != nil {
			return err
		}
	}
	if err := d.req.End(); err != nil {
		return err
	}
	if kinds, err = p.executors.register(d.conn, kinds); err != nil {
		return err
	}
	p.counts.Seen(kinds)
	return d.out.ReplyAny(d.req.ID, map[string]any{"authority": p.authority, "ttl_ms": p.ttl.Milliseconds(), "kinds": kinds})
}

func (p *Placement) unregister(d *responder) error {
	if err := d.req.End(); err != nil {
		return err
	}
	return d.aside(func(ctx context.Context) (any, error) {
		n, err := p.executors.unregister(ctx, d.conn)
		return map[string]any{"passivated": n}, err
	})
}

// SnapshotPage is the answer of Placement.Snapshot.
type SnapshotPage struct {
	State       placement.State      `json:"state"`
	Authority   string               `json:"authority"`
	Members     []SnapshotMember     `json:"members"`
	Kinds       []string             `json:"kinds"` // that processes here have registered for
	Activations []SnapshotActivation `json:"activations"`
	Total       int                  `json:"activations_total"`
	Ignored     uint64               `json:"ignored_results"`
	Key         *SnapshotKey         `json:"key"` // the asked one, else nil
}

type SnapshotMember struct {
	Authority string   `json:"authority"`
	Token     int64    `json:"token"`
	Kinds     []string `json:"kinds"` // that it serves
}

func showMember(h placement.Host) SnapshotMember {
	return SnapshotMember{h.Authority, h.Token, append([]string{}, h.Kinds...)}
}

type SnapshotActivation struct {
	Kind     string `json:"kind"`
	Identity string `json:"identity"`
	Doing    string `json:"doing"`
	Active   bool   `json:"active"`
	PID      string `json:"pid"`
	Version  int64  `json:"version"`
	Token    int64  `json:"token"`
	IdleMS   int64  `json:"idle_ms"`
}

type SnapshotKey struct {
	Authority string             `json:"authority"` // "": no host serves the kind
	Locality  placement.Locality `json:"locality"`
	Record    *SnapshotRecord    `json:"record"` // nil: none
}

type SnapshotRecord struct {
	Owner   string `json:"owner"` // "": none
	PID     string `json:"pid"`
	Version int64  `json:"version"`
	Token   int64  `json:"token"`
	// ObservedMS is when its owner decided on it.
	ObservedMS int64 `json:"observed_ms"`
}

// snapshotWanted is what of a snapshot is asked for.
type snapshotWanted struct {
	after string
	limit int64
	key   placement.Key
}

func (d *responder) snapshotOptions() (w snapshotWanted, err error) {
	w.limit = defaultSnapshotPage
	err = d.eachOption([]string{"after", "limit", "kind", "identity"}, func(name string) (err error) {
		switch name {
		case "after":
			w.after, err = d.text()
		case "limit":
			w.limit, err = d.req.Int64()
			if err == nil && (w.limit < 0 || w.limit > maxSnapshotPage) {
				err = wire.Errorf(wire.CodeInvalidParams, "limit of %d is out of range: 0 to %d", w.limit, maxSnapshotPage)
			}
		case "kind":
			w.key.Kind, err = d.text()
		case "identity":
			w.key.Identity, err = d.text()
		}
		return err
	})
	if err == nil && w.key != (placement.Key{}) {
		err = w.key.Validate()
	}
	return w, err
}

func (p *Placement) snapshot(d *responder) error {
	want, err := d.snapshotOptions()
	if err != nil {
		return err
	}
	return d.asideLong(p.timeout, func(ctx context.Context) (any, error) { return p.page(ctx, want) })
}

// page is the part of the snapshot that is asked for.
func (p *Placement) page(ctx context.Context, want snapshotWanted) (SnapshotPage, error) {
	single := want.key != placement.Key{}
	var now placement.Snapshot
	if single {
		now = p.driver.Single(want.key)
	} else {
		kind, identity, _ := strings.Cut(want.after, "/")
		now = p.driver.Page(placement.Key{Kind: kind, Identity: identity}, int(want.limit))
	}
	page := SnapshotPage{
		State: now.State, Authority: now.Authority, Members: []SnapshotMember{}, Kinds: p.executors.kinds(),
		Activations: []SnapshotActivation{}, Total: now.Total, Ignored: now.Ignored,
	}
	for _, m := range now.Members {
		page.Members = append(page.Members, showMember(m))
	}
	for _, a := range now.Activations[:min(len(now.Activations), int(want.limit))] {
		page.Activations = append(page.Activations, SnapshotActivation{
			a.Key.Kind, a.Key.Identity, a.Doing, a.Active, a.Record.PID, a.Record.Version, a.Record.Token, a.IdleFor.Milliseconds(),
		})
	}
	if !single {
		return page, nil
	}
	page.Key = &SnapshotKey{Authority: now.LivesAt, Locality: placement.Remote}
	if now.LivesAt == p.authority && p.authority != "" {
		page.Key.Locality = placement.Local
	}
	r, err := p.records.Load(ctx, p.tenant, want.key)
	if err != nil {
		return page, storeError{err}
	}
	if r.Version > 0 {
		page.Key.Record = &SnapshotRecord{r.Owner.Authority, r.PID, r.Version, r.Token, r.ObservedMS}
	}
	return page, nil
}
