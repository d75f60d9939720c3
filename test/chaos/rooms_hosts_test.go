package chaos

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// roomPrograms are what the hosts of rooms run besides the daemon.
type roomPrograms struct {
	python, store string
}

// buildRoomPrograms has the clients installed and built, as their own tests do.
func buildRoomPrograms(t *testing.T) roomPrograms {
	t.Helper()
	python, _ := testkit.Clients(t, "../..")
	p := roomPrograms{store: filepath.Join(t.TempDir(), "fenced-store"), python: python}
	testkit.Output(t, "go", "build", "-buildvcs=false", "-o", p.store, "../../examples/fenced-store")
	return p
}

// roomHost is a daemon and the processes that it serves.
type roomHost struct {
	*testkit.Site
	number    roomHostNumber
	authority string
	args      []string // of the daemon
	daemon    *testkit.Instance
	processes []*roomProcess
}

// roomProcess runs rooms.
type roomProcess struct {
	*testkit.Instance
	stdin   io.Closer
	file    string // for its output
	address string
}

func (h *roomHost) String() string { return fmt.Sprintf("host %d", h.number) }

// launchRooms starts the processes of a host once its daemon answers.
func (h *roomHost) launchRooms(p roomPrograms, store string) {
	h.T.Helper()
	example := filepath.Join("..", "..", "examples", "chat-rooms")
	for name, argv := range map[string][]string{"python": {p.python, filepath.Join(example, "room.py")}, "node": {"node", filepath.Join(example, "room.mjs")}} {
		cmd := exec.Command(argv[0], append(argv[1:], h.Socket, store)...)
		python := filepath.Join("..", "..", "clients", "python")
		cmd.Env = h.Environment("PYTHONPATH="+filepath.Join(python, "src")+":"+filepath.Join(python, "placement", "src"), "PYTHONDONTWRITEBYTECODE=1")
		h.processes = append(h.processes, launchLogged(h.Site, cmd, name))
	}
}

// launchLogged has a process print to a file.
func launchLogged(s *testkit.Site, cmd *exec.Cmd, name string) *roomProcess {
	s.T.Helper()
	p := &roomProcess{file: s.Path(name + ".log")}
	file, err := os.Create(p.file)
	must.Succeed(s.T, err)
	defer file.Close()
	cmd.Stdout = file
	p.stdin, err = cmd.StdinPipe()
	must.Succeed(s.T, err)
	p.Instance = s.LaunchCommand(cmd)
	return p
}

// awaitRooms returns when the host's processes have registered, and one of them
// listens at its authority.
func (h *roomHost) awaitRooms() {
	h.T.Helper()
	var door string
	await.Eventually(h.T, h.String()+" has its processes", func() bool {
		door = ""
		ready := 0
		for _, p := range h.processes {
			select {
			case <-p.Ended:
				h.T.Fatalf("a process of %v has ended: %v\n%s", h, p.Err, p.Log)
			default:
			}
			for _, l := range p.lines() {
				switch l.Did {
				case "ready":
					p.address = l.Address
					ready++
				case "has the door":
					door = l.Address
				}
			}
		}
		return ready == len(h.processes) && door != ""
	})
	if door != h.authority {
		h.T.Fatalf("a process of %v listens at %s, want %s", h, door, h.authority)
	}
}

// lines are what the process has printed so far; the last may not be whole.
func (p *roomProcess) lines() []roomLine {
	text, err := os.ReadFile(p.file)
	must.Succeed(p.T, err)
	whole := text[:strings.LastIndexByte(string(text), '\n')+1]
	return readLines[roomLine](p.T, p.file, strings.NewReader(string(whole)))
}

// signal sends one to the daemon and, with all, to the processes.
func (h *roomHost) signal(sig syscall.Signal, all bool) {
	h.T.Helper()
	stopped := []*testkit.Instance{h.daemon}
	if all {
		for _, p := range h.processes {
			stopped = append(stopped, p.Instance)
		}
	}
	if sig == syscall.SIGCONT { // the processes first: what they find out they find out by themselves
		slices.Reverse(stopped)
	}
	for _, p := range stopped {
		p.Signal(sig)
	}
}
