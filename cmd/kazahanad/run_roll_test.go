package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

var rollReplicas = flag.Int("roll.replicas", 12, "programs of TestRunRolls, as make roll sets it; for each 50 there are 64 machine IDs")

// rollAhead is how far ahead of the clock the programs date IDs at most.
const rollAhead = "1s"

// roll is a deployment of programs under run.
type roll struct {
	*site
	url     string
	program string // makes IDs; its arguments are the machine ID and the site's folder
}

type replica struct {
	*testkit.Instance
	machineID string
}

// launch starts a replica, which may have to wait for a machine ID.
func (r *roll) launch() *replica {
	cmd := r.Command("run", "--config", "none", "--provider", r.url, "--ahead", rollAhead, "--", r.program, "{}", r.Dir)
	cmd.Env = r.Environment()
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

// newRoll has a store with 64 machine IDs for each 50 replicas.
func newRoll(t *testing.T, program string, replicas int) (r *roll, machineIDs int) {
	t.Helper()
	r = &roll{site: newSite(t), program: program}
	machineIDs = replicas * 64 / 50
	r.url = r.Initialised(r.StartRedis().URL() + fmt.Sprintf("term=10m&ids=0-%d", machineIDs-1))
	return r, machineIDs
}

// politely ends a replica as a service manager does.
func politely(_ int, p *replica) { _ = p.Cmd.Process.Signal(syscall.SIGTERM) }

// foreignGenerator is a program around a generator of IDs that knows nothing of
// kazahana. It writes every ID down, and says if another has its machine ID.
const foreignGenerator = `package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/bwmarrin/snowflake"
)

func main() {
	machineID, dir := os.Args[1], os.Args[2]
	number, err := strconv.ParseInt(machineID, 10, 64)
	must(err)
	held, err := os.OpenFile(dir+"/held-"+machineID, os.O_CREATE|os.O_RDWR, 0o600)
	must(err)
	if syscall.Flock(int(held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		must(os.WriteFile(dir+"/twice-"+machineID, nil, 0o600))
	}
	ids, err := os.Create(fmt.Sprintf("%s/dates-%s-%d", dir, machineID, os.Getpid()))
	must(err)
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	node, err := snowflake.NewNode(number)
	must(err)
	for {
		_, err := fmt.Fprintln(ids, node.Generate())
		must(err)
		select {
		case <-told:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
`

// buildGenerator gets the generator from its registry.
func buildGenerator(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	testkit.WriteFile(t, filepath.Join(dir, "main.go"), foreignGenerator)
	for _, args := range [][]string{{"mod", "init", "example"}, {"get", "github.com/bwmarrin/snowflake@v0.3.0"}, {"build", "-o", "generator", "."}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	return filepath.Join(dir, "generator")
}

// An unmodified generator is scaled from 1 replica to 50 on 64 machine IDs. All are replaced by new
// ones, a quarter at a time with the new ones first, and at once; some are lost to kills; and one is
// left. No machine ID is held twice at a time, no ID is made twice, and nothing stalls: a term is
// longer than the test waits for anything.
func TestRunRolls(t *testing.T) {
	t.Parallel()
	ring.Deep(t)
	ring.Program(t, "redis-server")
	replicas := *rollReplicas
	r, machineIDs := newRoll(t, buildGenerator(t), replicas)
	spare := machineIDs - replicas
	alive := []*replica{r.launch()}
	r.runs(alive[0])
	for len(alive) < replicas {
		alive = append(alive, r.launch())
	}
	for _, p := range alive[1:] {
		r.runs(p)
	}
	for begin := 0; begin < replicas; begin += spare {
		batch := alive[begin:min(begin+spare, replicas)]
		copy(batch, r.replace(batch, true, politely))
	}
	alive = r.replace(alive, false, politely)
	end := func(i int, p *replica) {
		switch i % 3 {
		case 0:
			_ = p.Cmd.Process.Kill() // its machine ID stays taken
		case 1:
			_ = syscall.Kill(r.programOf(p), syscall.SIGKILL)
		default:
			politely(i, p)
		}
	}
	lost := alive[1 : 1+spare]
	copy(lost, r.replace(lost, false, end))
	for i, p := range alive[1:] {
		end(i, p)
	}
	for _, p := range alive[1:] {
		p.AwaitEnd()
	}
	if r.programOf(alive[0]) == 0 {
		t.Error("the first replica does not run any more")
	}
	politely(0, alive[0])
	alive[0].AwaitEnd()
	r.check(machineIDs, 3*replicas+len(lost)) // seeds 001-1 and 001-6
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
	by := map[string]string{} // ID to a program
	for _, file := range files {
		_, name, _ := strings.Cut(filepath.Base(file), "-")
		f, err := os.Open(file)
		must.Succeed(r.T, err)
		for lines := bufio.NewScanner(f); lines.Scan(); {
			id := lines.Text()
			if by[id] != "" {
				r.T.Errorf("%s and %s both made the ID %s", by[id], name, id)
			}
			by[id] = name
		}
		_ = f.Close()
	}
	r.T.Logf("%d programs on %d machine IDs: no machine ID held twice at a time; of %d IDs none twice", programs, machineIDs, len(by))
}
