package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	changingPage = "../../docs/changing-providers.md"
	// changingBitSeq leaves 16 machine IDs, so that stores which grant the same
	// ones meet soon.
	changingBitSeq = 17
	changingTerms  = "term=2s&quarantine=2s&bit_seq=17"
	// changingDwell is more than a term: every daemon renews in it.
	changingDwell = 2500 * time.Millisecond
	changingBatch = 20
)

// changingVariables are the page's, for terms of seconds and one machine.
func changingVariables(old, other string) map[string]string {
	return map[string]string{
		"OLD": old, "NEW": other, "LOW": "ids=0-7", "HIGH": "ids=8-15", "HALF": "8", "ALL": "16", "APART": "0",
	}
}

// fleet is the hosts of one test, on which IDs are made all the time.
type fleet struct {
	t         *testing.T
	home      *site // of the stores
	hosts     []*host
	servers   map[string]func() // what "start NAME" does
	stops     map[string]func()
	variables map[string]string
	settings  []string
	over      atomic.Bool
	askers    sync.WaitGroup
}

// host is a machine with a daemon and a program that asks it for IDs.
type host struct {
	*site
	name   string
	daemon *testkit.Instance
	mu     sync.Mutex
	ids    []uint64
	errs   []string
}

func newFleet(t *testing.T, settings ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, home: newSite(t), settings: settings, servers: map[string]func(){}, stops: map[string]func(){}}
	for _, name := range []string{"site-a", "site-b", "site-b"} {
		h := &host{site: newSite(t), name: name}
		f.hosts = append(f.hosts, h)
		f.askers.Go(func() { h.ask(&f.over) })
	}
	t.Cleanup(f.end)
	return f
}

// end stops the programs that ask for IDs.
func (f *fleet) end() {
	f.over.Store(true)
	f.askers.Wait()
}

func (f *fleet) sqlite() string { return "sqlite:" + f.home.Leases() + "?" + changingTerms }

// redis runs a server in a directory of its own, and returns its URL.
func (f *fleet) redis(name string) string {
	f.t.Helper()
	ring.Program(f.t, "redis-server")
	dir := f.home.Path(name)
	testkit.Mkdir(f.t, dir)
	socket := filepath.Join(dir, "s.sock")
	var server *testkit.Instance
	f.servers[name] = func() {
		server = f.home.LaunchCommand(exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--logfile", "/dev/null"))
		await.Eventually(f.t, "redis answers", func() bool { _, err := testkit.RedisAsk(socket, "PING"); return err == nil })
	}
	f.stops[name] = func() { server.Kill() }
	f.servers[name]()
	return "redis+unix:" + socket + "?" + changingTerms
}

// ask takes IDs as a busy program does, until it is over.
func (h *host) ask(over *atomic.Bool) {
	for !over.Load() {
		c, err := testkit.DialSocket(h.Socket)
		for err == nil && !over.Load() {
			err = h.askOnce(c)
			time.Sleep(time.Millisecond)
		}
		if c != nil {
			_ = c.Close()
		}
		time.Sleep(await.Interval)
	}
}

// askOnce takes a batch. It fails when the daemon is stopping or gone; every
// other refusal is noted.
func (h *host) askOnce(c *wire.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	var ids []uint64
	err := c.Call(ctx, "NextIDs", &ids, changingBatch)
	var refusal *wire.Error
	switch {
	case err == nil:
		h.take(ids)
	case errors.As(err, &refusal) && refusal.Code != wire.CodeShuttingDown:
		h.note(err.Error())
		return nil
	case !errors.As(err, &refusal) && !errors.Is(err, wire.ErrConnectionLost):
		h.note(err.Error())
	}
	return err
}

func (h *host) note(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, what)
}

func (h *host) take(ids []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(ids) != changingBatch || !testkit.Ascending(ids) || len(h.ids) > 0 && ids[0] <= h.ids[len(h.ids)-1] {
		h.errs = append(h.errs, fmt.Sprintf("a batch of %d does not ascend", len(ids)))
	}
	h.ids = append(h.ids, ids...)
}

// made is how many IDs the host has so far.
func (h *host) made() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ids)
}

// restart is what the page's word stands for.
func (f *fleet) restart(which, url string) {
	f.t.Helper()
	for _, h := range f.chosen(which) {
		f.stopHost(h)
		testkit.WriteFile(f.t, h.Path("k.yaml"), "provider: \""+url+"\"\n")
		before := h.made()
		h.daemon = h.Start(append([]string{"--config", h.Path("k.yaml"), "--sequence-start", "zero",
			"--acquire-retry-interval", "100ms", "--acquire-retry-max-interval", "200ms", "--verify-interval", "500ms"}, f.settings...)...)
		await.Eventually(f.t, "the host has IDs again", func() bool { return h.made() > before })
		if said := h.Kazahanad("status").OK(f.t); strings.Contains(url, "ids=") && !strings.Contains(said, url[strings.Index(url, "ids="):]) {
			f.t.Errorf("status does not show the range of %s:\n%s", url, said)
		}
	}
}

func (f *fleet) stopHost(h *host) {
	if h.daemon != nil {
		h.daemon.Terminate()
		h.daemon = nil
	}
}

// crash ends all daemons as a power failure would.
func (f *fleet) crash() {
	for _, h := range f.hosts {
		h.daemon.Kill()
		h.daemon = nil
	}
}

func (f *fleet) chosen(which string) (hosts []*host) {
	for _, h := range f.hosts {
		if which == "all" || which == h.name {
			hosts = append(hosts, h)
		}
	}
	if len(hosts) == 0 {
		f.t.Fatalf("the page speaks of hosts %q", which)
	}
	return hosts
}

// section is the blocks of commands below a heading of the page.
func section(t *testing.T, page, heading string) (blocks []string) {
	t.Helper()
	content, err := os.ReadFile(page)
	must.Succeed(t, err)
	_, text, found := strings.Cut(string(content), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", page, heading)
	}
	if next := regexp.MustCompile(`(?m)^#+ `).FindStringIndex(text); next != nil {
		text = text[:next[0]]
	}
	for _, m := range regexp.MustCompile("(?sm)^ *```sh\n(.*?)^ *```$").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// steps is a section that must have so many blocks.
func steps(t *testing.T, heading string, n int) []string {
	t.Helper()
	blocks := section(t, changingPage, heading)
	if len(blocks) != n {
		t.Fatalf("%q has %d blocks of commands, and this test knows %d", heading, len(blocks), n)
	}
	return blocks
}

// follow does what a block says, and lets the hosts go on for a while after it.
func (f *fleet) follow(block string) {
	f.t.Helper()
	f.obey(block)
	testkit.Pause(f.t, changingDwell)
}

func (f *fleet) obey(block string) {
	f.t.Helper()
	for line := range strings.Lines(block) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		switch word, _, _ := strings.Cut(line, " "); word {
		case "restart", "stop", "start":
			f.act(strings.Split(strings.TrimSuffix(f.shell(`printf '%s\n' `+line), "\n"), "\n"))
		default:
			f.shell(line)
		}
	}
}

func (f *fleet) act(words []string) {
	f.t.Helper()
	if len(words) == 3 && words[0] == "restart" {
		f.restart(words[1], words[2])
		return
	}
	if len(words) != 2 {
		f.t.Fatalf("the page says %q", words)
	}
	stop, start := f.stops[words[1]], f.servers[words[1]]
	switch {
	case stop == nil && words[0] == "stop":
		for _, h := range f.chosen(words[1]) {
			f.stopHost(h)
		}
	case words[0] == "stop":
		stop()
	case start != nil && words[0] == "start":
		start()
	default:
		f.t.Fatalf("the page says %q", words)
	}
}

// shell runs a line of the page as it stands.
func (f *fleet) shell(line string) string {
	f.t.Helper()
	cmd := exec.Command("sh", "-eu", "-c", line)
	cmd.Env = f.home.Environment("KAZAHANA_CONFIG=none")
	cmd.Env[0] = "PATH=" + filepath.Dir(testkit.Executable()) + ":" + os.Getenv("PATH")
	for name, value := range f.variables {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return testkit.RunCommand(f.t, cmd).OK(f.t)
}

// verdict is what the IDs of all hosts together say.
type verdict struct {
	regular, fallback int
	twice             int // regular IDs made more than once
	shared            int // milliseconds in which two hosts used the same machine ID
	errs              []string
}

func (f *fleet) look() (v verdict) {
	users := map[uint64]int{} // by timestamp and machine ID
	var regular []uint64
	for i, h := range f.hosts {
		h.mu.Lock()
		v.errs = append(v.errs, h.errs...)
		for _, id := range h.ids {
			if testkit.IsFallback(id) {
				v.fallback++
				continue
			}
			regular = append(regular, id)
			if user, used := users[id>>changingBitSeq]; used && user != i {
				v.shared++
			}
			users[id>>changingBitSeq] = i
		}
		h.mu.Unlock()
	}
	v.regular = len(regular)
	v.twice, _ = testkit.Duplicates(regular)
	return v
}

// settle ends the test: no ID twice, and no two hosts at one machine ID.
func (f *fleet) settle() (v verdict) {
	f.t.Helper()
	f.end()
	for _, h := range f.hosts {
		f.stopHost(h)
	}
	v = f.look()
	f.t.Logf("%d regular and %d fallback IDs, %d regular ones twice", v.regular, v.fallback, v.twice)
	if v.twice > 0 || v.shared > 0 || v.regular == 0 {
		f.t.Errorf("of %d regular IDs %d were made twice; %d times two hosts used one machine ID in the same millisecond", v.regular, v.twice, v.shared)
	}
	for _, h := range f.hosts {
		if h.made() == 0 {
			f.t.Error("a host had no ID")
		}
	}
	return v
}

// alwaysRegular checks that all IDs were regular, and that a request failed for
// want of a lease only: on a busy machine a daemon may come too late to renew
// one of two seconds.
func (f *fleet) alwaysRegular(v verdict) {
	f.t.Helper()
	others := slices.DeleteFunc(v.errs, func(e string) bool { return strings.HasPrefix(e, string(wire.CodeLeaseAcquisition)+":") })
	if v.fallback > 0 || len(others) > 0 {
		f.t.Errorf("%d fallback IDs; %d requests failed: %.3q", v.fallback, len(others), others)
	}
}
