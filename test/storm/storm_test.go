// Package storm has many processes ask one daemon for IDs through the clients of all languages
// while it is killed and restarted under them. No ID comes twice, no caller's IDs come out of
// order, and no caller sees an error.
package storm

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// enough bytes of records show that a process is answered.
const enough = 4096

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// asker is a process that asks.
type asker struct {
	language, kind string
	files          int // that it writes: one for each process of a cluster
}

var (
	brief = []asker{{"Python", "threads", 1}, {"Python", "tasks", 1}, {"Node", "cluster", 5}, {"Go", "goroutines", 1}, {"Java", "threads", 1}}
	whole = append(slices.Repeat([]asker{{"Python", "threads", 1}}, 5),
		asker{"Python", "prefetch", 1}, asker{"Python", "prefetch", 1}, asker{"Python", "tasks", 1},
		asker{"Node", "calls", 1}, asker{"Node", "calls", 1}, asker{"Node", "prefetch", 1}, asker{"Node", "cluster", 5},
		asker{"Go", "goroutines", 1}, asker{"Java", "threads", 1}, asker{"Java", "prefetch", 1})
)

// TestStorm lasts as long as the variable says that make sets.
func TestStorm(t *testing.T) {
	ring.Deep(t)
	python, classes := testkit.Clients(t, "../..")
	s := storm{Site: testkit.NewSite(t), lasts: 3 * time.Second, restarts: 1, python: python, classes: classes}
	askers := brief
	if text := os.Getenv("KAZAHANA_STORM"); text != "" {
		lasts, err := time.ParseDuration(text)
		must.Succeed(t, err)
		askers, s.lasts, s.restarts = whole, lasts, 2
	}
	s.golang = s.Path("asker")
	if out, err := exec.Command("go", "build", "-C", "../../clients/go/programs", "-o", s.golang, "./asker").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.run(askers)
}

// storm is a daemon and its callers.
type storm struct {
	*testkit.Site
	lasts     time.Duration
	restarts  int
	python    string
	classes   string // of the client in Java
	golang    string // the program of clients/go/programs/asker
	processes []*process
}

func (s *storm) run(askers []asker) {
	s.T.Helper()
	d := s.Start()
	for i, a := range askers {
		s.launch(a, i)
	}
	for life := range s.restarts + 1 {
		if life > 0 {
			d.Kill()
			d = s.Start()
		}
		s.awaitAnswers()
		testkit.Pause(s.T, s.lasts/time.Duration(s.restarts+1))
	}
	total := totals{}
	for _, p := range s.processes {
		p.end()
		total.add(s.T, p)
	}
	s.Dial().AwaitMode("regular")
	if fault := disorder(total.calls); fault != "" {
		s.T.Error(fault)
	}
	n, first := testkit.Duplicates(total.ids)
	if n > 0 {
		s.T.Errorf("%d IDs came twice; the first is %d", n, first)
	}
	if total.errors > 0 || len(total.ids) == 0 {
		s.T.Errorf("%d calls failed, %d IDs came", total.errors, len(total.ids))
	}
	fallback := 0
	for _, id := range total.ids {
		if testkit.IsFallback(id) {
			fallback++
		}
	}
	s.T.Logf("%d processes, %v, daemon killed and restarted %d times\n%s%d IDs, %d of them twice, %d of them fallback IDs",
		len(askers), s.lasts, s.restarts, total.table(), len(total.ids), n, fallback)
}

// process is an asker that was started.
type process struct {
	asker
	*testkit.Instance
	stdin io.Closer
	path  string // of its first file; the others' begin so
}

func (s *storm) launch(a asker, number int) {
	s.T.Helper()
	p := &process{asker: a, path: s.Path("ids" + strconv.Itoa(number))}
	var cmd *exec.Cmd
	switch a.language {
	case "Python":
		cmd = exec.Command(s.python, "clients/asker.py", a.kind, s.Socket, p.path)
	case "Node":
		cmd = exec.Command("node", "clients/asker.cjs", a.kind, s.Socket, p.path)
	case "Java":
		cmd = exec.Command("java", "-cp", s.classes, "clients/Asker.java", a.kind, s.Socket, p.path)
	default:
		cmd = exec.Command(s.golang, s.Socket, p.path)
	}
	src, err := filepath.Abs("../../clients/python/src")
	must.Succeed(s.T, err)
	cmd.Env = s.Environment("PYTHONPATH="+src, "PYTHONDONTWRITEBYTECODE=1")
	p.stdin, err = cmd.StdinPipe()
	must.Succeed(s.T, err)
	p.Instance = s.LaunchCommand(cmd)
	s.processes = append(s.processes, p)
}

func (p *process) String() string { return p.language + " " + p.kind }

// written are the sizes of the files of a process.
func (p *process) written() map[string]int64 {
	p.T.Helper()
	files, err := filepath.Glob(p.path + "*")
	must.Succeed(p.T, err)
	sizes := map[string]int64{}
	for _, file := range files {
		if file == p.path || strings.HasPrefix(file, p.path+"-") {
			info, err := os.Stat(file)
			must.Succeed(p.T, err)
			sizes[file] = info.Size()
		}
	}
	return sizes
}

// awaitAnswers returns when this life of the daemon has answered everybody.
func (s *storm) awaitAnswers() {
	s.T.Helper()
	for _, p := range s.processes {
		before := p.written()
		await.Eventually(s.T, p.String()+" is answered", func() bool {
			select {
			case <-p.Ended:
				s.T.Fatalf("%v has ended: %v: %s", p, p.Err, p.Log)
			default:
			}
			now := p.written()
			for file, size := range now {
				if size < before[file]+enough {
					return false
				}
			}
			return len(now) == p.files
		})
	}
}

// end tells the process to finish, and waits until it has.
func (p *process) end() {
	p.T.Helper()
	_ = p.stdin.Close()
	p.AwaitEnd()
	if said := p.Log.String(); p.Err != nil || said != "" {
		p.T.Errorf("%v: %v\n%.2000s", p, p.Err, said)
	}
}
