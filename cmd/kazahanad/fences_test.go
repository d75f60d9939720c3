package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/browser"
)

// putBack takes backups of the site's two files, uses them on, and puts the backups
// back. The daemon ran and has stopped.
func (s *site) putBack() {
	t := s.t
	t.Helper()
	d := s.start()
	use := func() {
		s.kazahanad("lock", "-q", "--ttl", "1h", "report", "--", "true").ok(t)
		s.kazahanad("seq", "orders").ok(t)
	}
	use()
	for _, backup := range [][]string{{s.path("leases.backup")}, {"--store", s.path("store.backup")}} {
		said := s.kazahanad(append([]string{"leases", "backup", "--config", "none"}, backup...)...).ok(t)
		path := backup[len(backup)-1]
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || !strings.Contains(said, path) {
			t.Errorf("backup says %q and made %v (%v)", said, info, err)
		}
		s.kazahanad(append([]string{"leases", "backup", "--config", "none"}, backup...)...).fails(t, exitFailure, path, "overwrites nothing")
	}
	use()
	d.terminate()
	for from, to := range map[string]string{"leases.backup": "leases.db", "store.backup": "store.db"} {
		if err := os.Rename(s.path(from), s.state+"/"+to); err != nil {
			t.Fatal(err)
		}
	}
}

// A daemon on files that were put back grants nothing, and says so wherever somebody
// may look. An operator ends it, and it says that, too.
func TestFilesThatWerePutBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.putBack()
	s.examined(nil).has("sqlite.copy", "no sqlite.ok")

	d := s.start("--admin-listen", "unix:"+s.path("admin.sock"), "--acquire-retry-interval", "50ms", "--acquire-retry-max-interval", "100ms")
	s.kazahanad("id", "--regular-only").fails(t, exitFailure, "LEASE_ACQUISITION", "grants are refused until ")
	s.kazahanad("lock", "-q", "report", "--", "true").fails(t, exitFailure, "LOCK_FENCED", "a backup was put back")
	s.kazahanad("seq", "orders").fails(t, exitFailure, "SEQUENCE_FENCED", "a backup was put back")
	st := s.statusFromCLI()
	if len(st.Fences) != 2 {
		t.Fatalf("status --json says %+v", st.Fences)
	}
	leases, store := st.Fences[0], st.Fences[1]
	now := time.Now()
	if leases.File != "sqlite:"+s.state+"/leases.db" || leases.UntilMS < now.Add(15*time.Minute).UnixMilli() || leases.Sequences ||
		store.File != "sqlite:"+s.state+"/store.db" || store.UntilMS < now.Add(50*time.Minute).UnixMilli() || !store.Sequences {
		t.Errorf("status --json says %+v", st.Fences)
	}
	if text := s.kazahanad("status").ok(t); strings.Count(text, "held back") != 2 || !strings.Contains(text, "kazahanad leases init") {
		t.Errorf("status says\n%s", text)
	}
	s.examined(nil).has("sqlite.fenced", "daemon.fallback")
	_, metrics := s.get("/metrics")
	for _, f := range st.Fences {
		m := regexp.MustCompile(`kazahana_store_fenced_until_timestamp_seconds\{file="` + f.File + `"\} (\S+)`).FindStringSubmatch(metrics)
		if m == nil {
			t.Errorf("the metrics lack %s", f.File)
		} else if at, err := strconv.ParseFloat(m[1], 64); err != nil || int64(at*1000+0.5) != f.UntilMS {
			t.Errorf("the metric is %s (%v), want %d ms", m[1], err, f.UntilMS)
		}
	}
	if _, page := s.get("/status.json"); !strings.Contains(page, `"fences":[{"file":"`+leases.File) {
		t.Errorf("the page's data are %s", page)
	}
	said := func(message string) (n int) {
		for _, line := range d.log.lines(t) {
			if line["msg"] == message {
				n++
				if message == "grants are held back" && (line["level"] != "error" || line["until"] == "" || line["file"] == "" || line["reason"] == "") {
					t.Errorf("the line is %v", line)
				}
			}
		}
		return n
	}
	eventually(t, "the log says so", func() bool { return said("grants are held back") == 2 })

	s.kazahanad("leases", "init", "--config", "none").fails(t, exitUsage, "--yes", "1 records")
	if text := s.kazahanad("leases", "init", "--config", "none", "--yes").ok(t); !strings.Contains(text, "for all pools") {
		t.Errorf("init says %q", text)
	}
	eventually(t, "the log says that it is over", func() bool { return said("grants begin again") == 2 })
	s.dial().awaitMode("regular")
	s.kazahanad("lock", "-q", "report", "--", "true").ok(t)
	s.kazahanad("seq", "orders").ok(t)
	if st := s.statusFromCLI(); len(st.Fences) != 0 || said("grants are held back") != 2 {
		t.Errorf("afterwards: %+v", st.Fences)
	}
	s.examined(nil).has("sqlite.ok", "no sqlite.fenced")
	if text := s.kazahanad("leases", "init", "--config", "none").ok(t); !strings.Contains(text, "nothing is held back") {
		t.Errorf("init a second time says %q", text)
	}
}

// The same of the lease server.
func TestLeaseServerOnAFileThatWasPutBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.putBack()
	server := s.startPageServer("127.0.0.1:0", "--provider", "sqlite:"+s.state+"/leases.db")
	eventually(t, "the log says so", func() bool { return strings.Contains(server.log.String(), `"msg":"grants are held back"`) })
	var out struct {
		Fences []struct {
			File  string
			Until int64
		}
	}
	server.asked("GET", "/status.json", adminToken, nil, &out)
	if len(out.Fences) != 1 || out.Fences[0].File != "sqlite:"+s.state+"/leases.db" || out.Fences[0].Until < time.Now().UnixMilli() {
		t.Errorf("/status.json says %+v", out)
	}
	s.start("--provider", server.url()+"?token_file="+s.hostTokenFile(), "--startup-wait", "10s", "--fallback", "none")
	s.kazahanad("id").fails(t, exitFailure, "LEASE_ACQUISITION", "grants are refused until ", "kazahanad leases init")
}

// An operator who put back what cannot be seen says so.
func TestFenceByHand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.kazahanad("leases", "fence", "--config", "none").fails(t, exitFailure, "there is no such file")
	s.kazahanad("leases", "backup", "--config", "none", s.path("b")).fails(t, exitFailure, "there is no such file")
	d := s.start()
	s.kazahanad("leases", "backup", "--config", "none", "--store", s.path("b")).fails(t, exitFailure, "none was used so far")
	if text := s.kazahanad("leases", "fence", "--config", "none").ok(t); strings.Count(text, "\n") != 1 || !strings.Contains(text, "leases.db: no machine ID is granted until ") {
		t.Errorf("fence says %q", text)
	}
	s.kazahanad("seq", "orders").ok(t)
	if text := s.kazahanad("leases", "fence", "--config", "none").ok(t); strings.Count(text, "\n") != 2 || !strings.Contains(text, "store.db: no lock is granted until ") {
		t.Errorf("fence says %q", text)
	}
	s.kazahanad("seq", "orders").fails(t, exitFailure, "SEQUENCE_FENCED", "kazahanad leases fence")
	s.kazahanad("run", "--config", "none", "-q", "--wait", "0", "--", "true").fails(t, exitFailure, "grants are refused until ", "kazahanad leases fence")
	eventually(t, "the log says so", func() bool { return strings.Contains(d.log.String(), `"msg":"grants are held back"`) })
	for provider, want := range map[string]string{"static:17": "no file of SQLite", "http://127.0.0.1:1": "where the lease server keeps its leases"} {
		s.kazahanad("leases", "fence", "--config", "none", "--provider", provider).fails(t, exitFailure, want)
		s.kazahanad("leases", "backup", "--config", "none", "--provider", provider, s.path("b")).fails(t, exitFailure, want)
	}
}

// The pages show what is held back.
func lookAtFence(t *testing.T, b *browser.Browser) {
	s := newSite(t)
	s.putBack()
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	s.start("--admin-listen", address)
	s.kazahanad("seq", "orders").fails(t, exitFailure, "SEQUENCE_FENCED")
	tab := b.Open(t, "http://"+address+"/", desk)
	tab.Await(`document.querySelectorAll("#fences li").length === 2`)
	for _, want := range []string{"leases.db", "store.db", "Grants are held back until ", "Sequences that were used before hand out nothing", "kazahanad leases init"} {
		if text := tab.Text("#fences"); !strings.Contains(text, want) {
			t.Errorf("the page says %q, want %q in it", text, want)
		}
	}
	readable(t, tab)
	s.kazahanad("leases", "init", "--config", "none", "--yes").ok(t)
	tab.Await(`document.querySelectorAll("#fences li").length === 0`)
	clean(t, tab, "http://"+address)
}

func lookAtServersFence(t *testing.T, b *browser.Browser) {
	s := newSite(t)
	s.putBack()
	server := s.startLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+s.state+"/leases.db")
	tab := b.Open(t, server.url()+"/", desk)
	tab.Await(`document.querySelectorAll("#fences li").length === 1 && document.querySelector("#state").dataset.tone === "bad" && document.title.startsWith("⚠")`)
	readable(t, tab)
	s.kazahanad("leases", "init", "--config", "none", "--yes").ok(t)
	tab.Await(`document.querySelectorAll("#fences li").length === 0 && document.querySelector("#state-name").innerText === "Ready"`)
	clean(t, tab, server.url())
}
