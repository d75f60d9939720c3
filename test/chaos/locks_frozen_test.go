package chaos

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// protected is what the locks protect, one thing for each: it takes nothing under
// a token that is older than the newest it has seen. It also picks the holders that
// will be stopped.
type protected struct {
	t        *testing.T
	listener net.Listener
	serving  sync.WaitGroup

	mu     sync.Mutex
	newest map[string]int64 // tokens, by key; this and all below are guarded by mu
	serial int64
	picks  map[int]*lockPick // by process
	conns  []net.Conn
}

// lockPick is one process that will be stopped while it holds a lock.
type lockPick struct {
	made  chan struct{} // closed once key and token are set
	key   string
	token int64
	goOn  bool // it was stopped, and another one has the lock
}

// lockWrite is what a process tells what its lock protects.
type lockWrite struct {
	Process int
	Key     string
	Token   int64
	May     bool // it may be told to hold on
	Asks    bool // it was, and asks whether it may go on: nothing is written
}

// lockWritten is the answer.
type lockWritten struct {
	Serial int64 // of all that was written or refused
	Stale  bool  // refused: a process with a greater token was here
	HoldOn bool  // do nothing under the lock until you may go on
}

func (c *chaos) startProtected() *protected {
	c.T.Helper()
	listener, err := net.Listen("unix", c.Path("protected"))
	if err != nil {
		c.T.Fatal(err)
	}
	p := &protected{t: c.T, listener: listener, newest: map[string]int64{}, picks: map[int]*lockPick{}}
	p.serving.Go(p.accept)
	c.T.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		for _, conn := range p.conns {
			_ = conn.Close()
		}
		p.mu.Unlock()
		p.serving.Wait()
	})
	return p
}

func (p *protected) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.conns = append(p.conns, conn)
		p.mu.Unlock()
		p.serving.Go(func() {
			in, out := json.NewDecoder(conn), json.NewEncoder(conn)
			for w := (lockWrite{}); in.Decode(&w) == nil; w = (lockWrite{}) {
				if out.Encode(p.write(w)) != nil {
					return
				}
			}
		})
	}
}

func (p *protected) write(w lockWrite) (a lockWritten) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pick := p.picks[w.Process]
	if w.Asks {
		a.HoldOn = pick != nil && !pick.goOn
		return a
	}
	p.serial++
	a.Serial = p.serial
	if a.Stale = w.Token < p.newest[w.Key]; a.Stale {
		return a
	}
	p.newest[w.Key] = w.Token
	if w.May && pick != nil && pick.key == "" {
		pick.key, pick.token, a.HoldOn = w.Key, w.Token, true
		close(pick.made)
	}
	return a
}

// overtaken reports whether another process has used the lock since.
func (p *protected) overtaken(pick *lockPick) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.newest[pick.key] > pick.token
}

// lockFreeze is a time in which a process stood still, longer than the term of a
// lease that it had.
type lockFreeze struct {
	process     int
	key         string
	token       int64
	from, until int64 // as in lockAttempt; by until another one had used the lock
}

// freezer stops processes while they hold a lock, for longer than its term.
type freezer struct {
	users     *lockProcesses
	protected *protected
	ttl       time.Duration
	enough    chan struct{}
	work      sync.WaitGroup

	mu      sync.Mutex
	freezes []lockFreeze // guarded by mu
}

// freeze has so many processes at a time stand still, now one and now another.
func (p *lockProcesses) freeze(from *protected, ttl time.Duration, atOnce int) *freezer {
	f := &freezer{users: p, protected: from, ttl: ttl, enough: make(chan struct{})}
	for i := range atOnce {
		random := rand.New(rand.NewPCG(p.rng.Uint64(), 0))
		f.work.Go(func() {
			for done := false; !done && !p.T.Failed(); {
				process := i + atOnce*random.IntN(len(p.procs)/atOnce)
				f.stop(process, f.ttl+time.Duration(random.Int64N(int64(f.ttl)/2)))
				select {
				case <-f.enough:
					done = true
				case <-time.After(f.ttl / 4):
				}
			}
		})
	}
	return f
}

// end returns once all processes go on.
func (f *freezer) end() []lockFreeze {
	close(f.enough)
	f.work.Wait()
	return f.freezes
}

// stop stops a process that has just been granted a lock, until its term is over and another one
// has used the lock.
func (f *freezer) stop(process int, lasts time.Duration) {
	pick := &lockPick{made: make(chan struct{})}
	p := f.protected
	p.mu.Lock()
	p.picks[process] = pick
	p.mu.Unlock()
	select {
	case <-pick.made:
	case <-time.After(await.Patience):
		p.t.Errorf("process %d was granted no lock within %v", process, await.Patience)
		return
	}
	cmd := f.users.procs[process].Cmd
	span := lockFreeze{process: process, key: pick.key, token: pick.token, from: int64(clock.System{}.Boot())}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		p.t.Errorf("process %d cannot be stopped: %v", process, err)
	}
	deadline := time.Now().Add(await.Patience)
	time.Sleep(lasts)
	for !p.overtaken(pick) {
		if time.Now().After(deadline) {
			p.t.Errorf("process %d stood still, and nobody else used %s within %v of token %d", process, pick.key, await.Patience, pick.token)
			break
		}
		time.Sleep(await.Interval)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		p.t.Errorf("process %d cannot be continued: %v", process, err)
	}
	span.until = int64(clock.System{}.Boot())
	p.mu.Lock()
	pick.goOn = true
	p.mu.Unlock()
	f.mu.Lock()
	f.freezes = append(f.freezes, span)
	f.mu.Unlock()
}

// awake is how much of the time the process did not stand still.
func (r lockRecord) awake(process int, from, until int64) time.Duration {
	lasted := until - from
	for _, f := range r.freezes {
		if f.process == process {
			lasted -= max(0, min(until, f.until)-max(from, f.from))
		}
	}
	return time.Duration(lasted)
}

// checkWrites: what a lock protects is never changed under a token older than the
// newest that it has seen, and a certain holder of the lock may change it.
func checkWrites(res *lockResult, key string, writes []lockAttempt, grants map[string]*lockGrant) {
	slices.SortFunc(writes, func(a, b lockAttempt) int { return cmp.Compare(a.Serial, b.Serial) })
	newest := int64(0)
	for _, w := range writes {
		g := grants[w.Lease]
		switch {
		case w.Outcome == lockStale && g != nil && w.Answered < g.heldUntil:
			res.violates(locksTwoHolders, "%s: a write under token %d was refused, %v before the end of its lease: token %d was there", key, w.Got.Token,
				time.Duration(g.heldUntil-w.Answered).Round(time.Millisecond), newest)
		case w.Outcome == lockStale:
			res.stale++
		case w.Outcome == lockOK && w.Got.Token < newest:
			res.violates(locksWritten, "%s: a write under token %d came after one under token %d", key, w.Got.Token, newest)
		case w.Outcome == lockOK:
			newest = w.Got.Token
		}
	}
}

// checkRenewals: none is carried out after the end of the lease, by the store's clock,
// unless the store may be late to see that end.
func (r lockRecord) checkRenewals(res *lockResult, key string, all []*lockAsked, grants map[string]*lockGrant) {
	ends := map[string]int64{} // by the lease, as of the renewals before
	for _, a := range all {    // a lease has one at a time
		g := grants[a.first().Lease]
		if a.first().Op != lock.Renew.String() || g == nil {
			continue
		}
		end, known := ends[g.LeaseID]
		if !known {
			end = g.Lease.ExpiresMS
		}
		switch {
		case len(a.ok) > 0:
			got := a.ok[0].Got
			if renewed := got.ExpiresMS - a.first().TTLMS; renewed >= end && !r.late {
				res.violates(locksLate, "%s: the lease of token %d was renewed %d ms after its end at %d, by the store's clock", key, g.Token, renewed-end, end)
			}
			end = got.ExpiresMS
		case a.unsure(): // as late as may be
			end = math.MaxInt64
		}
		ends[g.LeaseID] = end
	}
}

// checkWoken: who stood still until the lock was another's can neither renew nor
// release it, nor write under it.
func (r lockRecord) checkWoken(res *lockResult, key string, all []*lockAsked, writes []lockAttempt, grants map[string]*lockGrant) {
	for _, f := range r.freezes {
		if f.key != key {
			continue
		}
		did := 0
		judge := func(t lockAttempt) {
			g := grants[t.Lease]
			if g == nil || g.Token != f.token || t.Sent < f.until {
				return
			}
			switch did++; t.Outcome {
			case lockStale, lockNotOwned, lockExpired:
				res.refusedLate++
			case lockOK:
				res.violates(locksLate, "%s: %s under token %d was carried out, %v after its holder had woken and when another had used the lock", key, t.Op, f.token,
					time.Duration(t.Sent-f.until).Round(time.Millisecond))
			}
		}
		for _, w := range writes {
			judge(w)
		}
		for _, a := range all {
			for _, t := range a.attempts {
				judge(t)
			}
		}
		if did == 0 {
			res.violates(locksFault, "%s: process %d stood still with token %d, and did nothing when it had woken", key, f.process, f.token)
		}
	}
}

// guarded is how a process reaches what its locks protect.
type guarded struct {
	mu  sync.Mutex // for one question and its answer
	in  *json.Decoder
	out *json.Encoder
}

func dialProtected(path string) (*guarded, func(), error) {
	conn, err := net.DialTimeout("unix", path, await.Patience)
	if err != nil {
		return nil, nil, err
	}
	return &guarded{in: json.NewDecoder(conn), out: json.NewEncoder(conn)}, func() { _ = conn.Close() }, nil
}

func (g *guarded) tell(w lockWrite) (a lockWritten, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.out.Encode(w); err != nil {
		return a, fmt.Errorf("what the locks protect is out of reach: %w", err)
	}
	return a, g.in.Decode(&a)
}
