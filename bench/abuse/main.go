//go:build linux

// Package abuse attacks the daemon and the lease server, and shows that others are still
// served. Each attack has a fresh server under the limits of the shipped manifests. The
// attackers are other processes, if possible of other users, while an innocent client
// goes on with its work.
package abuse

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/suite"
)

const (
	shippedMiB = 256       // of memory, as in most of the shipped manifests; a sidecar has half of it
	diskLimit  = 256 << 20 // bytes in the state directory, for each attacker
)

// attack is one row of the table. Its attackers are processes that begin anew whenever
// they are cut off.
type attack struct {
	name   string
	users  int // attackers, each of its own user and address
	serve  []string
	quiet  bool // connections are all that it does
	honest bool // nothing that it asks for may be refused
	begin  func(a *attacker)
}

// aim is what is attacked.
type aim int

const (
	socket aim = iota // of the daemon
	admin             // the daemon's admin listener
	doors             // the daemon's other listeners for IDs
	server            // the lease server
)

func (a aim) String() string {
	return [...]string{"socket", "admin listener", "other listeners for IDs", "lease server"}[a]
}

// groups are all attacks, in the table's order.
var groups = []struct {
	at      aim
	attacks []attack
}{{socket, controlSocket}, {socket, onMemory}, {socket, onWaiting}, {socket, onDisk}, {admin, onAdmin}, {doors, onDoors}, {server, controlServer}, {server, onServer}}

func find(name string) (attack, aim) {
	for _, g := range groups {
		for _, a := range g.attacks {
			if a.name == name {
				return a, g.at
			}
		}
	}
	return attack{}, 0
}

// Run is the suite.
func Run(ctx context.Context, args []string) error {
	p := suite.Plan{Rounds: 1, Duration: 10 * time.Second, Core: -1}
	if runtime.NumCPU() > 1 {
		p.Core = 0
	}
	only, memory := "", int64(0)
	about := "Attacks the daemon and the lease server while an innocent client works; -duration is that of each attack.\n"
	err := p.Parse("abuse", about, args, os.Stderr, func(flags *flag.FlagSet) {
		flags.Int64Var(&memory, "memory", shippedMiB, "`MiB` that each server may use")
		flags.StringVar(&only, "only", "", "attacks whose name contains this `text`")
	})
	if err != nil {
		return err
	}
	return run(ctx, p, memory<<20, only, os.Stdout)
}

// field is where the attacks take place.
type field struct {
	plan   suite.Plan
	dir    string
	memory int64            // bytes that each server may use
	launch process.Launcher // starts servers, beside the innocent
	beside process.Launcher // starts attackers: on another core, if there is one
	users  bool             // attackers have users of their own
	first  bool             // the innocent has the highest priority
}

func run(ctx context.Context, p suite.Plan, memory int64, only string, out io.Writer) error {
	dir, err := p.Begin()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// Other users start this program, and open the socket.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	mine := filepath.Join(dir, "bench")
	if text, err := exec.Command("cp", self, mine).CombinedOutput(); err != nil {
		return fmt.Errorf("copy this program: %w: %s", err, text)
	}
	if err := os.Chmod(mine, 0o755); err != nil {
		return err
	}
	f := &field{plan: p, dir: dir, memory: memory, launch: process.Launcher{Core: p.Core, Self: mine}, users: os.Getuid() == 0}
	f.beside = f.launch.Beside()
	if err := f.launch.Join(); err != nil {
		return err
	}
	f.first = p.Core >= 0 && process.GoFirst() == nil
	printMethod(out, f)
	var all []result
	for range p.Rounds {
		for _, g := range groups {
			for _, a := range g.attacks {
				if !strings.Contains(a.name, only) {
					continue
				}
				r, err := f.carryOut(ctx, a, g.at)
				if err != nil {
					return fmt.Errorf("%s: %w", a.name, err)
				}
				if err := printResult(out, r, len(all) == 0); err != nil {
					return err
				}
				all = append(all, r)
			}
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("no attack is called %q", only)
	}
	broken := slices.DeleteFunc(all, func(r result) bool {
		return len(r.broken()) == 0 && !((p.Check || !p.Short) && (r.slow() || r.keeps()))
	})
	if len(broken) > 0 {
		return fmt.Errorf("%d promises are broken", len(broken))
	}
	return nil
}

// apart reports whether the attackers have a core that is not the server's.
func (f *field) apart() bool { return f.beside.Core != f.launch.Core }

// carryOut starts a server, attacks it, and looks at what is left.
func (f *field) carryOut(ctx context.Context, a attack, at aim) (r result, err error) {
	dir := filepath.Join(f.dir, strings.NewReplacer(" ", "-", "/", "-").Replace(a.name))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return r, err
	}
	t, err := f.start(ctx, dir, at, a.serve)
	if t != nil {
		defer t.stop()
	}
	if err != nil {
		return r, err
	}
	r = result{attack: a, at: at, users: f.users, memory: f.memory}
	if r.before, err = process.Resident(t.PID()); err != nil {
		return r, err
	}
	attackers, err := f.send(a, t)
	defer attackers.stop()
	if err != nil {
		return r, err
	}
	t.victim.begin()
	f.watch(ctx, t, &r, attackers)
	r.load = attackers.stop()
	r.served = t.victim.end()
	f.settle(ctx, t, &r)
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	r.disk = sizeOf(t.state)
	r.charged = t.group.peak()
	r.died = t.Failure()
	if r.died == nil {
		r.later = t.victim.warmUp()
	}
	return r, nil
}

const lookEvery = 20 * time.Millisecond

// watch notes the greatest memory for as long as the attack lasts. That counts from when all
// attackers are at work: some prepare for longer than a short attack lasts.
func (f *field) watch(ctx context.Context, t *target, r *result, attackers *attackers) {
	began, ready := time.Now(), false
	for end := began; !ready || time.Now().Before(end) && ctx.Err() == nil; time.Sleep(lookEvery) {
		if !ready && (attackers.load().Idle == 0 || time.Since(began) > startLimit || ctx.Err() != nil) {
			ready, end = true, time.Now().Add(f.plan.Duration)
		}
		size, err := process.Resident(t.PID())
		if err != nil {
			return // it has ended: Failure says so
		}
		r.peak = max(r.peak, size)
	}
}

// settleLimit is within which time a server gives back the memory that an attack made it use.
const settleLimit = 10 * time.Second

// settle waits until the memory is given back, or should have been.
func (f *field) settle(ctx context.Context, t *target, r *result) {
	began := time.Now()
	for {
		size, err := process.Resident(t.PID())
		if err != nil {
			return
		}
		r.after = size
		r.peak = max(r.peak, size)
		if !r.keeps() || time.Since(began) > settleLimit || ctx.Err() != nil {
			return
		}
		time.Sleep(lookEvery)
	}
}

// sizeOf is the sum of all files below a directory.
func sizeOf(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // a file that has gone meanwhile takes no room
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return nil
	})
	return sum
}
