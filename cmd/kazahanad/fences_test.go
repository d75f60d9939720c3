package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/browser"
)

// putBack takes backups of the site's two files, uses them on, and puts the backups
// back. The daemon ran and has stopped.
func (s *site) putBack() {
	t := s.T
	t.Helper()
	d := s.Start()
	s.Dial().Lease() // the backup is to have it
	use := func() {
		s.Kazahanad("lock", "-q", "--ttl", "1h", "report", "--", "true").OK(t)
		s.Kazahanad("seq", "orders").OK(t)
	}
	use()
	backup := func() testkit.Outcome { return s.Kazahanad("backup", "--config", "none", s.Path("backup")) }
	said := backup().OK(t)
	for _, name := range []string{"leases.db", "store.db"} {
		path := s.Path("backup/" + name)
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || !strings.Contains(said, path) {
			t.Errorf("backup says %q and made %v (%v)", said, info, err)
		}
	}
	backup().Fails(t, exitFailure, s.Path("backup/leases.db"), "overwrites nothing")
	use()
	d.Terminate()
	for _, name := range []string{"leases.db", "store.db"} {
		testkit.Rename(t, s.Path("backup/"+name), s.State+"/"+name)
	}
}

// A daemon on files that were put back grants nothing, and says so wherever an operator may look.
// An operator ends it, and it says that, too.
func TestFilesThatWerePutBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.putBack()
	s.Examined(nil).Has("provider fail", "no provider ok")

	d := s.Start("--admin-listen", "unix:"+s.Path("admin.sock"), "--acquire-retry-interval", "50ms", "--acquire-retry-max-interval", "100ms")
	s.Kazahanad("id", "--regular-only").Fails(t, exitFailure, "LEASE_ACQUISITION", "grants are refused until ")
	s.Kazahanad("lock", "-q", "report", "--", "true").Fails(t, exitFailure, "LOCK_FENCED", "a backup was put back")
	s.Kazahanad("seq", "orders").Fails(t, exitFailure, "SEQUENCE_FENCED", "a backup was put back")
	st := s.statusFromCLI()
	if len(st.Fences) != 2 {
		t.Fatalf("status --json says %+v", st.Fences)
	}
	leases, store := st.Fences[0], st.Fences[1]
	now := time.Now()
	if leases.File != "sqlite:"+s.State+"/leases.db" || leases.UntilMS < now.Add(15*time.Minute).UnixMilli() || leases.Sequences ||
		store.File != "sqlite:"+s.State+"/store.db" || store.UntilMS < now.Add(50*time.Minute).UnixMilli() || !store.Sequences {
		t.Errorf("status --json says %+v", st.Fences)
	}
	if text := s.Kazahanad("status").OK(t); strings.Count(text, "held back") != 2 || !strings.Contains(text, "kazahanad leases init") || !strings.Contains(text, "kazahanad store init") {
		t.Errorf("status says\n%s", text)
	}
	s.Examined(nil).Has("daemon fail", "daemon warn")
	_, metrics := s.Get("/metrics")
	for _, f := range st.Fences {
		m := regexp.MustCompile(`kazahana_store_fenced_until_timestamp_seconds\{file="` + f.File + `"\} (\S+)`).FindStringSubmatch(metrics)
		if m == nil {
			t.Errorf("the metrics lack %s", f.File)
		} else if at, err := strconv.ParseFloat(m[1], 64); err != nil || int64(at*1000+0.5) != f.UntilMS {
			t.Errorf("the metric is %s (%v), want %d ms", m[1], err, f.UntilMS)
		}
	}
	if _, page := s.Get("/status.json"); !strings.Contains(page, `"fences":[{"file":"`+leases.File) {
		t.Errorf("the page's data are %s", page)
	}
	said := func(message string) (n int) {
		for _, line := range d.Log.Lines(t) {
			if line["msg"] == message {
				n++
				if message == "grants are held back" && (line["level"] != "error" || line["until"] == "" || line["file"] == "" || line["reason"] == "") {
					t.Errorf("the line is %v", line)
				}
			}
		}
		return n
	}
	await.Eventually(t, "the log says so", func() bool { return said("grants are held back") == 2 })

	s.Kazahanad("leases", "init", "--config", "none").Fails(t, exitUsage, "--yes", "1 records")
	if text := s.Kazahanad("leases", "init", "--config", "none", "--yes").OK(t); !strings.Contains(text, "for all pools") {
		t.Errorf("init says %q", text)
	}
	await.Eventually(t, "the log says that it is over", func() bool { return said("grants begin again") == 1 })
	s.Dial().AwaitMode("regular")
	s.Kazahanad("lock", "-q", "report", "--", "true").Fails(t, exitFailure, "LOCK_FENCED", "a backup was put back")

	s.Kazahanad("store", "init", "--config", "none").Fails(t, exitUsage, "--yes", "store.db was used before")
	if text := s.Kazahanad("store", "init", "--config", "none", "--yes").OK(t); !strings.Contains(text, "store.db is declared new") {
		t.Errorf("init says %q", text)
	}
	await.Eventually(t, "the log says that it is over", func() bool { return said("grants begin again") == 2 })
	s.Kazahanad("lock", "-q", "report", "--", "true").OK(t)
	s.Kazahanad("seq", "orders").OK(t)
	if st := s.statusFromCLI(); len(st.Fences) != 0 || said("grants are held back") != 2 {
		t.Errorf("afterwards: %+v", st.Fences)
	}
	s.Examined(nil).Has("provider ok", "no provider fail")
	for _, area := range []string{"leases", "store"} {
		if text := s.Kazahanad(area, "init", "--config", "none").OK(t); !strings.Contains(text, "nothing is held back") {
			t.Errorf("%s init a second time says %q", area, text)
		}
	}
}

// The same of the lease server.
func TestLeaseServerOnAFileThatWasPutBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.putBack()
	server := s.startPageServer("127.0.0.1:0", "--provider", "sqlite:"+s.State+"/leases.db")
	server.AwaitLog(`"msg":"grants are held back"`)
	var out struct {
		Fences []struct {
			File  string
			Until int64
		}
	}
	server.Asked("GET", "/status.json", adminToken, nil, &out)
	if len(out.Fences) != 1 || out.Fences[0].File != "sqlite:"+s.State+"/leases.db" || out.Fences[0].Until < time.Now().UnixMilli() {
		t.Errorf("/status.json says %+v", out)
	}
	s.Start("--provider", server.URL()+"?token_file="+s.hostTokenFile(), "--startup-wait", "10s", "--fallback", "none")
	s.Kazahanad("id").Fails(t, exitFailure, "LEASE_ACQUISITION", "grants are refused until ", "kazahanad leases init")
}

// An operator who put back what cannot be seen says so.
func TestFenceByHand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Kazahanad("leases", "fence", "--config", "none").Fails(t, exitFailure, "there is no such file")
	s.Kazahanad("store", "fence", "--config", "none").Fails(t, exitFailure, "there is no such file")
	s.Kazahanad("backup", "--config", "none", s.Path("b")).Fails(t, exitFailure, "there is no SQLite file to copy")
	d := s.Start()
	s.Dial().Lease() // the file is there
	if said := s.Kazahanad("backup", "--config", "none", s.Path("b")).OK(t); strings.Count(said, "\n") != 1 || !strings.Contains(said, "leases.db") {
		t.Errorf("backup says %q", said)
	}
	if text := s.Kazahanad("leases", "fence", "--config", "none").OK(t); strings.Count(text, "\n") != 1 || !strings.Contains(text, "leases.db: no machine ID is granted until ") {
		t.Errorf("fence says %q", text)
	}
	s.Kazahanad("seq", "orders").OK(t)
	if text := s.Kazahanad("leases", "fence", "--config", "none").OK(t); strings.Count(text, "\n") != 1 {
		t.Errorf("fence says %q", text)
	}
	s.Kazahanad("seq", "orders").OK(t)
	if text := s.Kazahanad("store", "fence", "--config", "none").OK(t); strings.Count(text, "\n") != 1 || !strings.Contains(text, "store.db: no lock is granted until ") {
		t.Errorf("fence says %q", text)
	}
	s.Kazahanad("seq", "orders").Fails(t, exitFailure, "SEQUENCE_FENCED", "kazahanad store fence")
	s.Kazahanad("run", "--config", "none", "-q", "--wait", "0", "--", "true").Fails(t, exitFailure, "grants are refused until ", "kazahanad leases fence")
	d.AwaitLog(`"msg":"grants are held back"`)
	for provider, want := range map[string]string{"static:17": "not fenced by hand", "http://127.0.0.1:1": "where the lease server keeps it"} {
		s.Kazahanad("leases", "fence", "--config", "none", "--provider", provider).Fails(t, exitFailure, want)
	}
	s.Kazahanad("backup", "--config", "none", "--provider", "http://127.0.0.1:1", s.Path("c")).Fails(t, exitFailure, "provider http://127.0.0.1:1", "on its host")
}

// The pages show the fences.
func lookAtFence(t *testing.T, b *browser.Browser) {
	s := newSite(t)
	s.putBack()
	address := testkit.FreeAddress(t)
	s.Start("--admin-listen", address)
	s.Kazahanad("seq", "orders").Fails(t, exitFailure, "SEQUENCE_FENCED")
	tab := b.Open(t, "http://"+address+"/", desk)
	tab.Await(`document.querySelectorAll("#fences li").length === 2`)
	for _, want := range []string{"leases.db", "store.db", "Grants are held back until ", "Sequences that were used before hand out nothing", "kazahanad leases init", "kazahanad store init"} {
		if text := tab.Text("#fences"); !strings.Contains(text, want) {
			t.Errorf("the page says %q, want %q in it", text, want)
		}
	}
	readable(t, tab)
	s.Kazahanad("leases", "init", "--config", "none", "--yes").OK(t)
	s.Kazahanad("store", "init", "--config", "none", "--yes").OK(t)
	tab.Await(`document.querySelectorAll("#fences li").length === 0`)
	clean(t, tab, "http://"+address)
}
