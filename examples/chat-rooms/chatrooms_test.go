//go:build linux

// Package chatrooms has what README.md shows carried out.
package chatrooms

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Every host finds the rooms of all, in whichever process they are, and nothing is
// left behind. With a killed daemon: TestChaos of test/chaos.
func TestRooms(t *testing.T) {
	ring.All(t)
	for _, program := range []string{"bash", "python3", "node", "npm", "redis-server"} {
		ring.Program(t, program)
	}
	temporary := t.TempDir()
	port := freePorts(t, 5)
	cmd := exec.Command("./run", "--port", fmt.Sprint(port))
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary)
	// Should the test be killed, the end of its standard input ends it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	open, err := cmd.StdinPipe()
	must.Succeed(t, err)
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	log := &strings.Builder{}
	cmd.Stderr = log
	must.Succeed(t, cmd.Start())
	const preparation = 5 * await.Patience // it may install and build before it starts
	overdue := time.AfterFunc(preparation, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer overdue.Stop()
	said := awaitLine(out, "grep ")
	overdue.Reset(await.Patience)

	const rooms = 20
	for i := range rooms {
		for host := 1; host <= 3; host++ {
			say(t, fmt.Sprintf("http://127.0.0.1:%d/room-%d", port+host, i), fmt.Sprintf("from-%d", host))
		}
	}
	for i := range rooms {
		url := fmt.Sprintf("http://127.0.0.1:%d/room-%d", port+1+i%3, i)
		// A message said again, without an answer, may be there twice.
		if got := slices.Compact(strings.Fields(ask(t, http.MethodGet, url, ""))); !slices.Equal(got, []string{"from-1", "from-2", "from-3"}) {
			t.Errorf("%s has %q", url, got)
		}
	}
	_ = open.Close()
	rest, _ := io.ReadAll(out)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s\n%s\n%s", err, said, rest, log)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("it leaves behind %v, %v", left, err)
	}
}

// awaitLine reads until a line has the text.
func awaitLine(out io.Reader, text string) string {
	said := ""
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		said += line
		if err != nil || strings.Contains(line, text) {
			return said
		}
	}
}

// say appends to a room; its host may have to be found first.
func say(t *testing.T, url, text string) {
	t.Helper()
	await.Eventually(t, url+" takes a message", func() bool { return ask(t, http.MethodPost, url, text) == "" })
}

// ask returns the answer, which says why where the room is not there.
func ask(t *testing.T, method, url, text string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(text))
	must.Succeed(t, err)
	answer, err := http.DefaultClient.Do(r)
	must.Succeed(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must.Succeed(t, err)
	return string(body)
}

// freePorts finds some in a row, where no connection gets its own port from.
func freePorts(t *testing.T, n int) (first int) {
	t.Helper()
	for range 100 {
		first = 20_000 + rand.IntN(12_000)
		free := 0
		for ; free < n; free++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+free))
			if err != nil {
				break
			}
			defer l.Close()
		}
		if free == n {
			return first
		}
	}
	t.Fatalf("there are no %d free ports in a row", n)
	return 0
}
