package main

import (
	"os"
	"os/exec"
	"path/filepath"
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

// onPyPI is the version of pymemcache that the tests install.
const onPyPI = "pymemcache==4.0.0"

// pymemcache is a Python with it.
func pymemcache(t *testing.T, s *testkit.Site) string {
	t.Helper()
	env := s.Path("venv")
	for _, args := range [][]string{
		{ring.Program(t, "python3"), "-m", "venv", env}, {env + "/bin/pip", "install", "--quiet", "--disable-pip-version-check", onPyPI},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return env + "/bin/python"
}

const withPymemcache = `from itertools import count
from pymemcache.client.base import Client

client = Client("/run/kazahana/memcached.sock")
number = count()
print(int(client.get(f"id:{next(number)}")))
print([int(id) for id in client.get_many([f"id:{next(number)}" for _ in range(3)]).values()])
`

func TestNoClientPython(t *testing.T) {
	t.Parallel()
	s := testkit.NewSite(t)
	startNoClient(s)
	python := pymemcache(t, s)
	out, err := exec.Command(python, "-c", strings.ReplaceAll(withPymemcache, "/run/kazahana/", s.Dir+"/")).CombinedOutput()
	wantIDs(t, out, err, 4)
	// What else the client can do is answered in its terms.
	out, err = exec.Command(python, "-c", `
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheServerError
c = Client("`+s.Path("memcached.sock")+`")
value, cas = c.gets("id")
assert value == cas, (value, cas)
assert c.gets_many(["id:1", "id:2"]).keys() == {"id:1", "id:2"}
assert len(c.get_many([f"id:{n}" for n in range(2000)])) == 2000
assert c.version().startswith(b""), c.version()
try:
    c.get("nothing")
    raise SystemExit("no error")
except MemcacheServerError as e:
    assert "UNKNOWN_SERVICE" in str(e), e
assert int(c.get("id")) > int(value)
assert int(c.stats()[b"get_misses"]) == 1, c.stats()
# A key prefix names the service, or nothing does.
assert int(Client("`+s.Path("memcached.sock")+`", key_prefix=b"id:1:").get("orders")) > int(value)
try:
    Client("`+s.Path("memcached.sock")+`", key_prefix=b":1:").get("id")
    raise SystemExit("no error")
except MemcacheServerError as e:
    assert "UNKNOWN_SERVICE" in str(e) and "prefix" in str(e), e
c.quit()
`).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
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

const withGomemcache = `package main

import (
	"fmt"
	"log"
	"sync/atomic"

	"github.com/bradfitz/gomemcache/memcache"
)

func main() {
	client := memcache.New("/run/kazahana/memcached.sock")
	var number atomic.Int64
	item, err := client.Get(fmt.Sprintf("id:%d", number.Add(1)))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(item.Value))
}
`

func TestNoClientGo(t *testing.T) {
	t.Parallel()
	s := testkit.NewSite(t)
	startNoClient(s)
	dir := s.Path("go")
	testkit.Mkdir(t, dir)
	testkit.WriteFile(t, filepath.Join(dir, "main.go"), strings.ReplaceAll(withGomemcache, "/run/kazahana/", s.Dir+"/"))
	var out []byte
	var err error
	for _, args := range []string{"mod init example", "get github.com/bradfitz/gomemcache@v0.0.0-20250403215159-8d39553ac7cf", "run ."} {
		cmd := exec.Command("go", strings.Fields(args)...)
		cmd.Dir = dir
		if out, err = cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", args, err, out)
		}
	}
	wantIDs(t, out, err, 1)
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

// serve --check finds a directory in which no socket can be made.
func TestServeCheckDoors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	testkit.WriteFile(t, s.Path("file"), "")
	for _, flag := range []string{"--memcached-listen", "--http-listen"} {
		s.Kazahanad("serve", "--check", flag, "unix:"+s.Path("file/d.sock")).Fails(t, exitFailure, "not a directory")
		s.Kazahanad("serve", "--check", flag, "unix:"+s.Path("new/and/newer/d.sock")).OK(t)
	}
	if _, err := os.Stat(s.Path("new")); err == nil {
		t.Error("the check has made a directory")
	}
	closed := s.Path("closed")
	testkit.Mkdir(t, closed)
	must.Succeed(t, os.Chmod(closed, 0o500))
	if os.Geteuid() != 0 { // whom no mode stops
		s.Kazahanad("serve", "--check", "--http-listen", "unix:"+filepath.Join(closed, "d.sock")).Fails(t, exitFailure, "cannot be written")
	}
}
