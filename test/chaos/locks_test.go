package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

// chaosLocks is a scenario of locks and sequences.
type chaosLocks struct {
	store func(c *chaos) (url string)
	jumps bool // the store begins to count tokens by the time
	late  bool // it may be late to see that a lease has ended
}

// chaosUsers is how many processes use locks, and how much of them there is.
type chaosUsers struct {
	processes, keys, sequences, kills int
	frozen                            int // processes that stand still at a time
	lasts                             time.Duration
	ttl                               time.Duration
	gap                               time.Duration
}

// startLockServer starts a lease server with locks and sequences in the store.
func (c *chaos) startLockServer(store string) *serverOfLocks {
	c.T.Helper()
	args := []string{"--provider", "sqlite:" + c.Leases(), "--store", store, "--rate-limit", "0"}
	return &serverOfLocks{Site: c.Site, args: args, server: c.StartLeaseServer(testkit.FreeAddress(c.T), args...)}
}

type serverOfLocks struct {
	*testkit.Site
	args   []string
	server *testkit.LeaseServer
}

func (s *serverOfLocks) url() string { return s.server.URL() }
func (s *serverOfLocks) kill()       { s.server.Kill() }
func (s *serverOfLocks) restart()    { s.server = s.StartLeaseServer(s.server.Address, s.args...) }

func (c *chaos) locksInSQLite() string { return "sqlite:" + c.Path("locks.db") }

func (c *chaos) locksInRedis() string { return c.Initialised(c.StartRedis().URL()) }

func (c *chaos) locksInEtcd() string { return etcdURL(etcdtest.Cluster(c.T, 3, "http")) }

func (c *chaos) locksInPostgres() string { return postgrestest.New(c.T).URL() }

// lockProcesses are the processes that use locks.
type lockProcesses struct {
	*chaos
	procs []*testkit.Instance
	stdin []io.WriteCloser
	files []string
}

func (c *chaos) startLockProcesses(url string, from *protected, u chaosUsers) *lockProcesses {
	c.T.Helper()
	exe, err := os.Executable()
	must.Succeed(c.T, err)
	p := &lockProcesses{chaos: c}
	seed := c.rng.Uint64()
	for i := range u.processes {
		plan := lockPlan{
			URL: url, Protected: from.listener.Addr().String(), Process: i, Keys: u.keys, Sequences: u.sequences, TTLMS: u.ttl.Milliseconds(), Seed: seed, File: c.Path(fmt.Sprintf("asked-%d", i)),
		}
		text, err := json.Marshal(plan)
		must.Succeed(c.T, err)
		cmd := exec.Command(exe, string(text))
		cmd.Env = c.Environment(testkit.ChildEnv + "=locks")
		stdin, err := cmd.StdinPipe()
		must.Succeed(c.T, err)
		p.stdin, p.procs, p.files = append(p.stdin, stdin), append(p.procs, c.LaunchCommand(cmd)), append(p.files, plan.File)
	}
	return p
}

// end tells the processes to finish, and returns what they recorded.
func (p *lockProcesses) end() (all []lockAttempt) {
	p.T.Helper()
	for _, stdin := range p.stdin {
		_ = stdin.Close()
	}
	for i, proc := range p.procs {
		proc.AwaitEnd()
		if proc.Err != nil {
			p.T.Fatalf("process %d ended with %v: %s", i, proc.Err, proc.Log)
		}
		all = append(all, readFile[lockAttempt](p.T, p.files[i])...)
	}
	return all
}

// performLocks is perform for a scenario of locks.
func (c *chaos) performLocks(t *testing.T, s chaosScenario) (row string, violations []string) {
	t.Helper()
	u := chaosUsers{processes: 4, keys: 40, sequences: 4, kills: 1, frozen: 1, lasts: 3 * time.Second, ttl: time.Second, gap: await.Patience}
	if *chaosFull {
		u = chaosUsers{processes: 16, keys: 200, sequences: 8, kills: 3, frozen: 2, lasts: *chaosUse, ttl: 2 * time.Second, gap: chaosGap}
	}
	c.begin(t, s, fmt.Sprintf("terms of %v", u.ttl))
	server := c.startLockServer(s.locks.store(c))
	r := lockRecord{from: int64(clock.System{}.Boot()), gap: u.gap, jumps: s.locks.jumps, late: s.locks.late}
	from := c.startProtected()
	users := c.startLockProcesses(server.url(), from, u)
	freezer := users.freeze(from, u.ttl, u.frozen)
	c.say("%d processes acquire, renew and release %d locks, and take values of %d sequences", u.processes, u.keys, u.sequences)
	for range u.kills {
		c.pause(u.lasts / time.Duration(u.kills+1) * 5 / 6) // and a fifth of that more, at most
		server.kill()
		away := time.Duration(c.rng.Int64N(int64(u.ttl)))
		testkit.Pause(t, away)
		server.restart()
		c.say("killed it with -9, and started it again after %v", away.Round(time.Millisecond))
	}
	c.pause(u.lasts / time.Duration(u.kills+1) * 5 / 6)
	r.freezes = freezer.end()
	r.until = int64(clock.System{}.Boot())
	r.attempts = users.end()
	res := r.check()
	if res.done["acquire"] == 0 || res.done["release"] == 0 || res.done["next"] == 0 || *chaosFull && res.unknown == 0 {
		t.Errorf("it tested nothing: %v, %d without an answer", res.done, res.unknown)
	}
	if len(r.freezes) == 0 || res.stale < len(r.freezes) || res.refusedLate < len(r.freezes) {
		t.Errorf("it showed nothing of those who stood still: %d times, %d writes and %d requests were refused",
			len(r.freezes), res.stale, res.refusedLate)
	}
	c.say("stopped a process %d times for longer than the term of a lock that it had, and continued it once another had used that: "+
		"%d of its writes, renewals and releases were refused; of all writes %d, by their tokens", len(r.freezes), res.refusedLate, res.stale)
	c.say("checked %d requests, %d of which had no answer and were sent again; %d answers to what was answered before; %d leases that ran out; "+
		"%d answers that somebody else has the lock; gaps (longest %v of process %d, allowed %v)",
		res.asked, res.unknown, res.again, res.left, res.held, res.longestGap.Round(time.Millisecond), res.longestOf, u.gap)
	c.say("followed %d steps of the locks through docs/model/Locks.tla", res.steps)
	n := res.count
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%v\t%s\t", s.name, res.done["acquire"], res.done["renew"], res.done["release"], res.values, res.unknown,
		n[locksTwoHolders]+n[locksLost]+n[locksLate]+n[locksWritten]+n[locksNobody]+n[locksStep], n[locksTokens]+n[locksRepeated], n[locksApplied], n[locksValueTwice]+n[locksMissing]+n[locksDisorder],
		res.longestGap.Round(time.Millisecond), res.verdict()), res.violations
}
