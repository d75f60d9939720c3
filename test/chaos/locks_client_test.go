package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/sequence"
)

const (
	// lockWorkers is how many locks a process wants at a time. Beside them it has a worker that
	// takes values.
	lockWorkers = 3
	// lockPace is the mean time of everything that a worker does between two
	// requests, which leaves two cores mostly idle.
	lockPace = 12 * time.Millisecond
	lockWait = 300 * time.Millisecond
	// lockCall is how long one request may take, and lockRetry how long to wait
	// before it is sent again.
	lockCall  = 3 * time.Second
	lockRetry = 25 * time.Millisecond
	// lockFinish is how long a process goes on asking, when it is told to end,
	// what became of its requests.
	lockFinish = 15 * time.Second
	// One lock in lockHot is asked for as often as all others together; one key
	// of sequences in lockBlocked uses blocks.
	lockHot     = 20
	lockBlocked = 4
	lockBlock   = 16
	lockBatch   = 20
)

// lockPlan is what a process is told to do, as JSON.
type lockPlan struct {
	URL             string // of the lease server
	Protected       string // the socket of what the locks protect
	Process         int
	Keys, Sequences int
	TTLMS           int64
	Seed            uint64
	File            string // for requests and answers
}

// lockAttempt is a request that was sent, and what came of it. Times are on a
// clock that all processes of the machine share, in ns.
type lockAttempt struct {
	Process        int
	Op             string // of a lock; or get, write, next
	Key, Request   string
	Lease          string // the named one
	TTLMS          int64
	Count          int
	Block          bool
	Sent, Answered int64
	Outcome        string // lockOK, a refusal, or lockUnknown
	Error          string
	Got            lock.Lease // of a write: the lease that it was made under; if it is held, that which stood in the way
	Serial         int64      // of a write: which one it was of all
	Values         []int64
}

// Outcomes.
const (
	lockOK       = "ok"
	lockHeld     = "held"
	lockNotOwned = "not owned"
	lockExpired  = "expired"
	lockReused   = "reused"
	lockNotFound = "not found"
	lockStale    = "stale"   // a write, under an old token
	lockUnknown  = "unknown" // it may have been carried out, or may yet be
	lockRefused  = "refused" // for a reason that no request should meet
)

func lockOutcome(err error) string {
	var held *lock.HeldError
	switch {
	case err == nil:
		return lockOK
	case errors.As(err, &held):
		return lockHeld
	case errors.Is(err, lock.ErrNotOwned):
		return lockNotOwned
	case errors.Is(err, lock.ErrExpired):
		return lockExpired
	case errors.Is(err, lock.ErrRequestReused):
		return lockReused
	case errors.Is(err, lock.ErrNotFound):
		return lockNotFound
	case lock.IsAnswer(err) || sequence.IsAnswer(err):
		return lockRefused
	}
	return lockUnknown
}

// lockProcess is one of the processes that use locks.
type lockProcess struct {
	lockPlan
	locks     lock.Store
	sequences sequence.Store
	protected *guarded
	over      atomic.Bool

	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

// childLocks uses locks and sequences until its standard input ends.
func childLocks(args []string) error {
	p := &lockProcess{}
	if err := json.Unmarshal([]byte(args[0]), &p.lockPlan); err != nil {
		return err
	}
	var closeAll func()
	var err error
	if p.locks, p.sequences, closeAll, err = openLocks(p.URL); err != nil {
		return err
	}
	defer closeAll()
	var leave func()
	if p.protected, leave, err = dialProtected(p.Protected); err != nil {
		return err
	}
	defer leave()
	file, err := os.Create(p.File)
	if err != nil {
		return err
	}
	buffer := bufio.NewWriter(file)
	p.out = json.NewEncoder(buffer)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		p.over.Store(true)
		time.AfterFunc(lockFinish, cancel)
	}()
	var all sync.WaitGroup
	for i := range lockWorkers + 1 {
		random := rand.New(rand.NewPCG(p.Seed, uint64(p.Process*(lockWorkers+1)+i)))
		all.Go(func() {
			for !p.over.Load() {
				if i < lockWorkers {
					p.useLock(ctx, random)
				} else {
					p.takeValues(ctx, random)
				}
				rest(random)
			}
		})
	}
	all.Wait()
	return errors.Join(buffer.Flush(), file.Close())
}

func rest(random *rand.Rand) { time.Sleep(time.Duration(random.Int64N(2 * int64(lockPace)))) }

// useLock is the life of one lock in the hands of a program: it asks for it,
// renews it some times, and gives it back, or forgets to.
func (p *lockProcess) useLock(ctx context.Context, random *rand.Rand) {
	n := random.IntN(p.Keys)
	if random.IntN(2) == 0 {
		n = random.IntN(max(1, p.Keys/lockHot))
	}
	r := lock.Request{Op: lock.Acquire, Tenant: "default", Key: fmt.Sprintf("lock-%03d", n), Owner: fmt.Sprintf("p%d", p.Process), TTLMS: p.TTLMS}
	wait := time.Duration(0)
	if random.IntN(4) == 0 {
		wait = lockWait
	}
	if random.IntN(8) == 0 {
		p.ask(ctx, lockAttempt{Op: "get", Key: r.Key}, func(ctx context.Context, a *lockAttempt) (err error) {
			a.Got, err = p.locks.Get(ctx, r.Tenant, r.Key)
			return err
		})
	}
	r.LeaseID = lock.NewLeaseID()
	got, ok := p.change(ctx, random, r, wait)
	if !ok || random.IntN(32) == 0 {
		return
	}
	r.LeaseID = got.LeaseID
	p.write(got, n >= p.Keys/lockHot)
	for range random.IntN(4) {
		rest(random)
		r.Op = lock.Renew
		if _, ok = p.change(ctx, random, r, 0); !ok {
			break
		}
	}
	rest(random)
	p.write(got, false)
	r.Op, r.TTLMS = lock.Release, 0
	p.change(ctx, random, r, 0)
}

// write changes what the lock protects. It may be told to do nothing more until the
// process was stopped for longer than the term; it returns when that is over.
func (p *lockProcess) write(l lock.Lease, may bool) {
	a := lockAttempt{Process: p.Process, Op: "write", Key: l.Key, Lease: l.LeaseID, Got: l, Outcome: lockOK, Sent: int64(clock.System{}.Boot())}
	w := lockWrite{Process: p.Process, Key: l.Key, Token: l.Token, May: may}
	done, err := p.protected.tell(w)
	a.Answered, a.Serial = int64(clock.System{}.Boot()), done.Serial
	switch {
	case err != nil:
		a.Outcome, a.Error = lockRefused, err.Error()
	case done.Stale:
		a.Outcome = lockStale
	}
	p.record(a)
	for w.Asks = true; done.HoldOn && err == nil; done, err = p.protected.tell(w) {
		time.Sleep(lockPace)
	}
}

// change asks until there is an answer, and now and then once again, as a program does after its
// answer was lost.
func (p *lockProcess) change(ctx context.Context, random *rand.Rand, r lock.Request, wait time.Duration) (lock.Lease, bool) {
	r.RequestID, r.Wait = lock.NewLeaseID(), wait
	a := lockAttempt{Op: r.Op.String(), Key: r.Key, Request: r.RequestID, Lease: r.LeaseID, TTLMS: r.TTLMS}
	do := func(ctx context.Context, a *lockAttempt) (err error) {
		a.Got, err = p.locks.Do(ctx, r)
		return err
	}
	first := p.ask(ctx, a, do)
	if first.Outcome == lockOK && random.IntN(8) == 0 {
		if r.Op == lock.Acquire { // should the key have forgotten it, that is another lease
			r.LeaseID = lock.NewLeaseID()
			a.Lease = r.LeaseID
		}
		p.ask(ctx, a, do)
	}
	return first.Got, first.Outcome == lockOK
}

func (p *lockProcess) takeValues(ctx context.Context, random *rand.Rand) {
	n := random.IntN(p.Sequences)
	r := sequence.Request{Tenant: "default", Key: fmt.Sprintf("sequence-%d", n), Count: 1, RequestID: lock.NewLeaseID(), Options: sequence.DefaultOptions()}
	if n%lockBlocked == lockBlocked-1 {
		r.Options.Block = lockBlock
	}
	if random.IntN(3) == 0 {
		r.Count = 1 + random.IntN(lockBatch)
	}
	a := lockAttempt{Op: "next", Key: r.Key, Request: r.RequestID, Count: r.Count, Block: r.Options.Block > 0}
	next := func(ctx context.Context, a *lockAttempt) error {
		got, err := p.sequences.Next(ctx, r)
		a.Values = got.Values()
		return err
	}
	if first := p.ask(ctx, a, next); first.Outcome == lockOK && random.IntN(8) == 0 {
		p.ask(ctx, a, next)
	}
}

// ask does something until there is an answer, and records each attempt.
func (p *lockProcess) ask(ctx context.Context, a lockAttempt, do func(context.Context, *lockAttempt) error) lockAttempt {
	a.Process = p.Process
	for {
		within, cancel := context.WithTimeout(ctx, lockCall+lockWait)
		now := a
		now.Sent = int64(clock.System{}.Boot())
		err := do(within, &now)
		now.Answered = int64(clock.System{}.Boot())
		cancel()
		if now.Outcome = lockOutcome(err); err != nil {
			now.Error = err.Error()
		}
		if held, ok := errors.AsType[*lock.HeldError](err); ok {
			now.Got = lock.Lease{Key: held.Key, Owner: held.Owner, Token: held.Token, ExpiresMS: held.ExpiresMS, RemainingMS: held.RemainingMS}
		}
		p.record(now)
		if now.Outcome != lockUnknown || ctx.Err() != nil {
			return now
		}
		time.Sleep(lockRetry)
	}
}

func (p *lockProcess) record(a lockAttempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.out.Encode(a) // a full disk shows at the end
}

// openLocks connects to the lease server.
func openLocks(url string) (lock.Store, sequence.Store, func(), error) {
	s, err := backend.OpenStore(url, backend.StoreOptions{})
	if err != nil {
		return nil, nil, nil, err
	}
	blocks := sequence.NewBlocks(s.Sequences, clock.System{}.Boot)
	return s.Locks, blocks, func() { _ = s.Close() }, nil
}
