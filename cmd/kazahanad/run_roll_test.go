package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"golang.org/x/sys/unix"
)

var rollReplicas = flag.Int("roll.replicas", 12, "programs of TestRunRolls, as make roll sets it; for each 50 there are 64 machine IDs")

// rollAhead is how far ahead of the clock the programs date IDs: their unit of time
// is a second.
const rollAhead = "1s"

// childForeign is a program that makes IDs by itself: it dates them in seconds, and
// writes each second down. Its machine ID is held by nobody else, or it says so.
func childForeign(args []string) error {
	machineID, dir := args[0], args[1]
	held, err := os.OpenFile(filepath.Join(dir, "held-"+machineID), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return os.WriteFile(filepath.Join(dir, "twice-"+machineID), nil, 0o600)
	}
	dates, err := os.Create(filepath.Join(dir, fmt.Sprintf("dates-%s-%d", machineID, os.Getpid())))
	if err != nil {
		return err
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	for last := int64(0); ; {
		if now := time.Now().Unix(); now != last {
			last = now
			if _, err := fmt.Fprintln(dates, now); err != nil {
				return err
			}
		}
		select {
		case <-told:
			return nil
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// roll is a deployment of programs under run.
type roll struct {
	*site
	url  string
	self string // the test's binary
}

type replica struct {
	*testkit.Instance
	machineID string
}

// launch starts a replica, which may have to wait for a machine ID.
func (r *roll) launch() *replica {
	cmd := r.Command("run", "--config", "none", "--provider", r.url, "--ahead", rollAhead, "--", r.self, "{}", r.Dir)
	cmd.Env = r.Environment(testkit.ChildEnv + "=foreign")
	return &replica{Instance: r.LaunchCommand(cmd)}
}

// runs waits until the replica's program makes IDs.
func (r *roll) runs(p *replica) {
	r.T.Helper()
	p.Says("starting...")
	_, after, _ := strings.Cut(p.Log.String(), "machine ID: ")
	p.machineID, _, _ = strings.Cut(after, ",")
	await.Eventually(r.T, "the program makes IDs", func() bool { return r.programOf(p) != 0 })
}

// programOf is the process of the replica's program; 0 when there is none.
func (r *roll) programOf(p *replica) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.PID(), p.PID()))
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.PID()))
	for _, task := range tasks {
		more, _ := os.ReadFile(task)
		text = append(text, more...)
	}
	for _, field := range strings.Fields(string(text)) {
		if _, err := os.Stat(r.Path("dates-" + p.machineID + "-" + field)); err == nil {
			pid, _ := strconv.Atoi(field)
			return pid
		}
	}
	return 0
}

// replace ends the old ones, each in its way, and starts as many new ones: before
// that, where there are machine IDs to spare, or after.
func (r *roll) replace(old []*replica, surge bool, end func(i int, p *replica)) []*replica {
	r.T.Helper()
	fresh := make([]*replica, len(old))
	start := func() {
		for i := range fresh {
			fresh[i] = r.launch()
		}
	}
	finish := func() {
		for i, p := range old {
			end(i, p)
		}
		for _, p := range old {
			p.AwaitEnd()
		}
	}
	if surge {
		start()
		for _, p := range fresh {
			r.runs(p)
		}
		finish()
		return fresh
	}
	finish()
	start()
	for _, p := range fresh {
		r.runs(p)
	}
	return fresh
}

// 50 programs on 64 machine IDs are replaced by new ones: a quarter at a time with
// the new ones first, all at once, and with kills. No machine ID is in use twice, no
// ID could be made twice, and nothing stalls: a term is longer than the test waits
// for anything.
func TestRunRolls(t *testing.T) {
	t.Parallel()
	ring.Deep(t)
	ring.Program(t, "redis-server")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &roll{site: newSite(t), self: self}
	replicas := *rollReplicas
	machineIDs := replicas * 64 / 50
	spare := machineIDs - replicas
	r.url = r.Initialised(r.StartRedis().URL() + fmt.Sprintf("term=10m&ids=0-%d", machineIDs-1))
	alive := make([]*replica, replicas)
	for i := range alive {
		alive[i] = r.launch()
	}
	for _, p := range alive {
		r.runs(p)
	}
	politely := func(_ int, p *replica) { _ = p.Cmd.Process.Signal(syscall.SIGTERM) }
	for begin := 0; begin < replicas; begin += spare {
		batch := alive[begin:min(begin+spare, replicas)]
		copy(batch, r.replace(batch, true, politely))
	}
	alive = r.replace(alive, false, politely)
	killed := 0
	alive = r.replace(alive, false, func(i int, p *replica) {
		switch {
		case i%3 == 0:
			_ = syscall.Kill(r.programOf(p), syscall.SIGKILL)
		case i%3 == 1 && killed < spare/2: // its machine ID stays taken
			killed++
			_ = p.Cmd.Process.Kill()
		default:
			politely(i, p)
		}
	})
	r.replace(alive, false, politely)
	r.check(machineIDs, 5*replicas)
}

// check reads what the programs wrote down.
func (r *roll) check(machineIDs, programs int) {
	r.T.Helper()
	if twice, _ := filepath.Glob(r.Path("twice-*")); len(twice) > 0 {
		r.T.Errorf("machine IDs were in use twice: %v", twice)
	}
	files, _ := filepath.Glob(r.Path("dates-*"))
	if len(files) != programs {
		r.T.Errorf("%d programs made IDs, want %d", len(files), programs)
	}
	by := map[string]string{} // machine ID and second to a program
	for _, file := range files {
		_, name, _ := strings.Cut(filepath.Base(file), "-")
		machineID, _, _ := strings.Cut(name, "-")
		f, err := os.Open(file)
		if err != nil {
			r.T.Fatal(err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			key := machineID + " " + lines.Text()
			if by[key] != "" {
				r.T.Errorf("%s and %s both made IDs of the machine ID and second %s", by[key], name, key)
			}
			by[key] = name
		}
		_ = f.Close()
	}
	r.T.Logf("%d programs on %d machine IDs made IDs of %d seconds, none twice", programs, machineIDs, len(by))
}
