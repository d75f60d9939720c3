package main

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// noClientPage is docs/no-client.md with the sockets of a site and its running daemon.
func noClientPage(t *testing.T) (s *testkit.Site, page string) {
	t.Helper()
	s = testkit.NewSite(t)
	startNoClient(s)
	content, err := os.ReadFile("../../docs/no-client.md")
	must.Succeed(t, err)
	return s, strings.ReplaceAll(string(content), "/run/kazahana/", s.Dir+"/")
}

func startNoClient(s *testkit.Site) *testkit.Instance {
	return s.Start("--memcached-listen", "unix:"+s.Path("memcached.sock"), "--http-listen", "unix:"+s.Path("http.sock"))
}

// program is the page's block in a language.
func program(t *testing.T, page, language string) string {
	t.Helper()
	_, text, found := strings.Cut(page, "```"+language+"\n")
	if !found {
		t.Fatalf("the page has no %s", language)
	}
	text, _, _ = strings.Cut(text, "```")
	return text
}

var anID = regexp.MustCompile(`\d{18}`)

// TestNoClientCommands runs each command of docs/no-client.md: it prints what the page
// shows, but for the IDs.
func TestNoClientCommands(t *testing.T) {
	t.Parallel()
	_, page := noClientPage(t)
	ring.Program(t, "curl")
	ring.Program(t, "nc")
	ran := 0
	for _, m := range docFence.FindAllStringSubmatch(page, -1) {
		for _, part := range strings.Split("\n"+m[3], "\n$ ")[1:] {
			command, want, _ := strings.Cut(part, "\n")
			out, err := exec.Command("sh", "-c", command).CombinedOutput()
			got := strings.ReplaceAll(strings.TrimSpace(string(out)), "\r", "")
			if err != nil || anID.ReplaceAllString(got, "ID") != anID.ReplaceAllString(strings.TrimSpace(want), "ID") {
				t.Errorf("%s: %v\n%s\nthe page shows\n%s", command, err, got, want)
			}
			ran++
		}
	}
	if ran < 3 {
		t.Errorf("%d commands", ran)
	}
}

// wantIDs checks what a program printed: so many IDs, ascending.
func wantIDs(t *testing.T, out []byte, err error, want int) {
	t.Helper()
	last, found := int64(0), anID.FindAllString(string(out), -1)
	for _, text := range found {
		id, _ := strconv.ParseInt(text, 10, 64)
		if id <= last {
			t.Errorf("%d after %d", id, last)
		}
		last = id
	}
	if err != nil || len(found) != want {
		t.Errorf("%v: %d IDs, want %d:\n%s", err, len(found), want, out)
	}
}

func TestNoClientPHP(t *testing.T) {
	t.Parallel()
	s, page := noClientPage(t)
	php := ring.Program(t, "php")
	if out, err := exec.Command(php, "-m").Output(); err != nil || !strings.Contains(string(out), "memcached") {
		t.Skip("PHP has no extension memcached (Debian: php-memcached)")
	}
	testkit.WriteFile(t, s.Path("id.php"), program(t, page, "php"))
	for range 3 {
		out, err := exec.Command(php, s.Path("id.php")).CombinedOutput()
		wantIDs(t, out, err, 3)
	}
	testkit.WriteFile(t, s.Path("wrong.php"), strings.ReplaceAll(program(t, page, "php"), "get('id:'", "get('nothing:'"))
	if out, err := exec.Command(php, s.Path("wrong.php")).CombinedOutput(); err == nil || !strings.Contains(string(out), "UNKNOWN_SERVICE") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestNoClientReload: who may connect changes with a reload, where to does not. A stop
// removes the sockets.
func TestNoClientReload(t *testing.T) {
	t.Parallel()
	s := testkit.NewSite(t)
	curl := ring.Program(t, "curl")
	file := s.Path("reload.yaml")
	memcached, http := s.Path("memcached.sock"), s.Path("http.sock")
	listeners := "memcached_listen: unix:" + memcached + "\nhttp_listen: unix:" + http + "\n"
	testkit.WriteFile(t, file, listeners)
	d := s.Start("--config", file)
	status := func() string {
		t.Helper()
		out, err := exec.Command(curl, "-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", http, "http://x/id").Output()
		must.Succeed(t, err)
		return string(out)
	}
	if got := status(); got != "200" {
		t.Error(got)
	}
	info, err := os.Stat(memcached)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info, err)
	}
	testkit.WriteFile(t, file, strings.Replace(listeners, "http.sock", "other.sock", 1)+"allow_uids: ["+strconv.Itoa(os.Getuid()+1)+"]\n")
	must.Succeed(t, d.Cmd.Process.Signal(syscall.SIGHUP))
	d.AwaitLog(`"changed":["allow_uids"]`)
	d.AwaitLog(`"restart_needed":["http_listen"]`)
	if got := status(); got != "403" {
		t.Error(got)
	}
	d.Terminate()
	for _, path := range []string{memcached, http} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
}
