package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"golang.org/x/sys/unix"
)

// completions are the text typed before the tabulator key, and the line after it. In all of them
// there is one way to go on.
var completions = []struct{ typed, want string }{
	{"kazahanad statu", "kazahanad status"},
	{"kazahanad pla", "kazahanad placement"},
	{"kazahanad lease-s", "kazahanad lease-server"},
	{"kazahanad state acc", "kazahanad state accept-epoch"},
	{"kazahanad leases ini", "kazahanad leases init"},
	{"kazahanad store fe", "kazahanad store fence"},
	{"kazahanad serve --log-f", "kazahanad serve --log-format"},
	{"kazahanad state reset-floor --ye", "kazahanad state reset-floor --yes"},
	{"kazahanad serve --log-level w", "kazahanad serve --log-level warn"},
	{"kazahanad serve --sequence-start=sp", "kazahanad serve --sequence-start=spread"},
	{"kazahanad id --format ex", "kazahanad id --format external"},
	{"kazahanad completion fi", "kazahanad completion fish"},
	{"kazahanad serve --config onlyhe", "kazahanad serve --config onlyhere.yaml"},
	{"kazahanad serve --state-dir onlydi", "kazahanad serve --state-dir onlydir"},
	{"kazahanad leases --al", "kazahanad leases --all"},
	{"kazahanad lock key -- onlyhe", "kazahanad lock key -- onlyhere.yaml"},
}

// completionHome is a directory with the files that the completions name, and a
// PATH that has the program.
func completionHome(t *testing.T) (dir string, env []string) {
	t.Helper()
	dir = t.TempDir()
	testkit.WriteFile(t, filepath.Join(dir, "onlyhere.yaml"), "")
	bin := filepath.Join(dir, "onlydir")
	must.Succeed(t, os.Mkdir(bin, 0o755))
	must.Succeed(t, os.Symlink(testkit.Executable(), filepath.Join(bin, "kazahanad")))
	return dir, []string{"HOME=" + dir, "PATH=" + bin + ":/usr/bin:/bin", "TERM=dumb", "LC_ALL=C.UTF-8", "COLUMNS=200", "PS1=> ", "PROMPT=> "}
}

func needShell(t *testing.T, name string) string {
	t.Helper()
	ring.All(t)
	return ring.Program(t, name)
}

// shell is an interactive shell on a terminal.
type shell struct {
	t       *testing.T
	outside *os.File
	mu      sync.Mutex
	shown   string
}

func startShell(t *testing.T, argv ...string) *shell {
	t.Helper()
	path := needShell(t, argv[0])
	dir, env := completionHome(t)
	outside, inside := terminal(t)
	must.Succeed(t, unix.IoctlSetWinsize(int(inside.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 200}))
	cmd := exec.Command(path, argv[1:]...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inside, inside, inside
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	must.Succeed(t, cmd.Start())
	_ = inside.Close()
	s := &shell{t: t, outside: outside}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 4096)
		for {
			n, err := outside.Read(buffer)
			if err != nil {
				return // the shell has gone
			}
			s.mu.Lock()
			s.shown += string(buffer[:n])
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		<-read
	})
	return s
}

// send types the text, and waits until want is shown after it.
func (s *shell) send(text, want string) {
	s.t.Helper()
	s.mu.Lock()
	s.shown = ""
	s.mu.Unlock()
	if _, err := s.outside.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
	await.Eventually(s.t, fmt.Sprintf("%q after %q", want, text), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.shown, want)
	})
}

// completesAll types each completion, and clears the line after it.
func (s *shell) completesAll() {
	for i, c := range completions {
		s.send(c.typed+"\t", c.want)
		s.send(fmt.Sprintf("\x15echo end-$((%d+1000))\n", i), fmt.Sprintf("end-%d", i+1000))
	}
}

func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	s := startShell(t, "bash", "--norc", "--noprofile", "-i")
	const functions = "/usr/share/bash-completion/bash_completion"
	if _, err := os.Stat(functions); err != nil {
		t.Fatalf("%v: scripts/setup installs it", err)
	}
	s.send("source "+functions+"; source <(kazahanad completion bash); echo sourced-$?\n", "sourced-0")
	s.completesAll()
	// Of several ways to go on, all are listed.
	s.send("kazahanad serve --log-level \t\t", "debug  error  info   warn")
}

func TestCompletionInZsh(t *testing.T) {
	t.Parallel()
	s := startShell(t, "zsh", "-f", "-i")
	s.send("autoload -Uz compinit; compinit -u -D; source <(kazahanad completion zsh); echo sourced-$?\n", "sourced-0")
	s.completesAll()
	s.send("kazahanad state \t", "accept-epoch  -- Let a service go on")
}

// fish tells its offers.
func TestCompletionInFish(t *testing.T) {
	t.Parallel()
	fish := needShell(t, "fish")
	dir, env := completionHome(t)
	script := "kazahanad completion fish | source\n"
	for i, c := range completions {
		script += fmt.Sprintf("echo case %d\ncomplete -C %q\n", i, c.typed)
	}
	cmd := exec.Command(fish, "--no-config", "-c", script)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	parts := strings.Split(string(out), "case ")
	if len(parts) != len(completions)+1 || strings.TrimSpace(parts[0]) != "" {
		t.Fatalf("fish says %s", out)
	}
	for i, c := range completions {
		words := strings.Fields(c.want)
		want := words[len(words)-1]
		var offered []string
		for line := range strings.Lines(parts[i+1]) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			offered = append(offered, strings.TrimSuffix(word, "/"))
		}
		if !slices.Equal(offered[1:], []string{want}) {
			t.Errorf("%q is completed with %q, want %q", c.typed, offered[1:], want)
		}
	}
}

func TestCompletionOfAnotherShell(t *testing.T) {
	t.Parallel()
	got := newSite(t).Kazahanad("completion", "tcsh")
	if got.Code != exitUsage || !strings.Contains(got.Stderr, "bash, zsh, fish") {
		t.Errorf("%+v", got)
	}
}
