package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// phpWorker calls the recipe's function for each line. Its errors end no call after them.
const phpWorker = `
while (fgets(STDIN) !== false) {
    try {
        echo next_id(), "\n";
    } catch (Throwable $e) {
        echo 'error: ', str_replace("\n", ' ', $e->getMessage()), "\n";
    }
}
`

// phpThrows is what frameworks do with warnings.
const phpThrows = `<?php
set_error_handler(function ($level, $text) { throw new ErrorException($text); });
`

const rubyWorker = `
$stdout.sync = true
while gets
  begin
    puts next_id
  rescue StandardError => e
    puts "error: #{e.message}"
  end
end
`

// recipeWorkers are the recipes that may stand in a process that lives on, with how to
// run them. Each has the text of a program for a site.
func recipeWorkers(t *testing.T) map[string]func(s *testkit.Site) (program, file, text string) {
	socketOf := func(s *testkit.Site, text string) string {
		// No answer at all is an error in five seconds, and not in twelve.
		return strings.NewReplacer("/run/kazahana/kazahanad.sock", s.Socket, ", 12); // the", ", 5); // the", "(12) do", "(5) do",
			`echo next_id(), "\n";`, phpWorker).Replace(text)
	}
	return map[string]func(s *testkit.Site) (string, string, string){
		"PHP": func(s *testkit.Site) (string, string, string) {
			return "php", "id.php", socketOf(s, recipe(t, "php", "php"))
		},
		"PHP that throws": func(s *testkit.Site) (string, string, string) {
			return "php", "id.php", socketOf(s, strings.Replace(recipe(t, "php", "php"), "<?php\n", phpThrows, 1))
		},
		"Ruby": func(s *testkit.Site) (string, string, string) {
			page, err := os.ReadFile("../../docs/databases.md")
			must.Succeed(t, err)
			text, _, _ := strings.Cut(program(t, string(page), "ruby"), "class ApplicationRecord")
			return "ruby", "id.rb", socketOf(s, text) + rubyWorker
		},
		"PHP with memcached": func(s *testkit.Site) (string, string, string) {
			page, err := os.ReadFile("../../docs/no-client.md")
			must.Succeed(t, err)
			text, _, _ := strings.Cut(strings.TrimPrefix(program(t, string(page), "php"), "<?php\n"), "echo $id")
			text = strings.ReplaceAll(text, "/run/kazahana/", s.Dir+"/")
			return "php", "id.php", "<?php\nfunction next_id() {\n" + text + "return $id;\n}\n" + phpWorker
		},
	}
}

// recipeWorker is a process of a recipe that lives on.
type recipeWorker struct {
	t   *testing.T
	in  io.Writer
	out *os.File
}

func startRecipe(t *testing.T, s *testkit.Site, program, file, text string) *recipeWorker {
	t.Helper()
	testkit.WriteFile(t, s.Path(file), text)
	cmd := exec.Command(ring.Program(t, program), s.Path(file))
	cmd.Env = append(os.Environ(), "KAZAHANA_SOCKET="+s.Socket)
	in, err := cmd.StdinPipe()
	must.Succeed(t, err)
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &recipeWorker{t: t, in: in, out: out.(*os.File)}
}

func (w *recipeWorker) request() {
	w.t.Helper()
	_, err := fmt.Fprintln(w.in, "id")
	must.Succeed(w.t, err)
}

// answer is an ID, or 0 with what the recipe says.
func (w *recipeWorker) answer() (id int64, said string) {
	w.t.Helper()
	must.Succeed(w.t, w.out.SetReadDeadline(time.Now().Add(await.Patience)))
	line, err := bufio.NewReader(w.out).ReadString('\n') // one line comes for each request
	must.Succeed(w.t, err)
	said = strings.TrimSpace(line)
	id, _ = strconv.ParseInt(said, 10, 64)
	if id == 0 && !strings.HasPrefix(said, "error: ") {
		w.t.Errorf("neither an ID nor an error: %s", said)
	}
	return id, said
}

func (w *recipeWorker) ask() (int64, string) {
	w.t.Helper()
	w.request()
	return w.answer()
}

// TestRecipesInAWorkerThatLivesOn: a recipe has IDs again as soon as the daemon runs again,
// after one error at most.
func TestRecipesInAWorkerThatLivesOn(t *testing.T) {
	t.Parallel()
	for name, of := range recipeWorkers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testkit.NewSite(t)
			program, file, text := of(s)
			w := startRecipe(t, s, program, file, text)
			down := func() {
				t.Helper()
				for range 3 {
					if id, _ := w.ask(); id != 0 {
						t.Errorf("%d without a daemon", id)
					}
				}
			}
			last := int64(0)
			up := func(errors int) {
				t.Helper()
				for i := range 4 {
					if id, said := w.ask(); i >= errors && id <= last {
						t.Fatalf("answer %d after a start: %s, and %d before", i, said, last)
					} else if id != 0 {
						last = id
					}
				}
			}
			down()
			d := startNoClient(s)
			up(0)
			d.Terminate()
			d = startNoClient(s)
			up(1) // its connection is of the daemon before
			d.Kill()
			down()
			d = startNoClient(s)
			up(0)
			d.Terminate()
			if name != "PHP with memcached" {
				cutAnswers(t, s, w)
			}
		})
	}
}

// cutAnswers answers the worker in the daemon's place: half an answer is an error and no
// ID, an answer that comes byte by byte is whole, and a late one is not the next call's.
func cutAnswers(t *testing.T, s *testkit.Site, w *recipeWorker) {
	t.Helper()
	listener, err := net.Listen("unix", s.Socket)
	must.Succeed(t, err)
	defer listener.Close()
	accept := func() net.Conn {
		t.Helper()
		must.Succeed(t, listener.(*net.UnixListener).SetDeadline(time.Now().Add(await.Patience)))
		conn, err := listener.Accept()
		must.Succeed(t, err)
		_, err = io.ReadFull(conn, make([]byte, 26))
		must.Succeed(t, err)
		return conn
	}
	const whole = "\x94\x01\x00\xc0\xb2117360159400092001"
	for _, n := range []int{0, 1, 4, 5, 6, len(whole) - 1} {
		w.request()
		conn := accept()
		_, err := io.WriteString(conn, whole[:n])
		must.Succeed(t, err)
		_ = conn.Close()
		if id, _ := w.answer(); id != 0 {
			t.Errorf("%d from %d bytes of an answer", id, n)
		}
	}
	w.request()
	late := accept()
	defer late.Close()
	if id, said := w.answer(); id != 0 {
		t.Errorf("without an answer: %s", said)
	}
	_, _ = io.WriteString(late, whole)
	w.request()
	conn := accept()
	defer conn.Close()
	other := strings.Replace(whole, "2001", "2002", 1)
	for i := range other {
		_, err := io.WriteString(conn, other[i:i+1])
		must.Succeed(t, err)
	}
	if id, said := w.answer(); id != 117360159400092002 {
		t.Errorf("an answer in pieces, after a late one: %s", said)
	}
}
