package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/browser"
)

// A daemon with very many leases tells of them in few words.
func TestStatusOfManyLeases(t *testing.T) {
	t.Parallel()
	const many = 75_000
	s := newSite(t)
	testkit.WriteFile(t, s.Path("server.yaml"), fmt.Sprintf("services: {default: {bit_id: 22, bit_seq: 0, max_leases_per_acquire: %d, term: 1h}}\n", many))
	server := s.StartLeaseServerWith(s.Path("server.yaml"), "127.0.0.1:0", "--provider", "memory:")
	d := s.Start("--provider", server.URL(), "--max-throughput-per-ms", fmt.Sprint(many), "--provider-timeout", await.Patience.String(),
		"--admin-listen", "unix:"+s.Path("admin.sock"))
	c := s.Dial()
	await.Eventually(t, "the leases are held", func() bool { return c.Status().Services[0].LeasesHeld == many })
	check := func(how string, st daemon.Status) {
		t.Helper()
		svc := st.Services[0]
		if svc.LeasesHeld != many || svc.LeasesUsable != many || svc.Throughput != many ||
			len(svc.Leases) != daemon.MaxListedLeases || svc.LeasesUnlisted != many-daemon.MaxListedLeases ||
			svc.LeasesEndMS != svc.Leases[0].ExpiredMS {
			t.Errorf("%s: %+v", how, svc)
		}
	}
	check("Status", c.Status())
	var st daemon.Status
	testkit.DecodeJSON(t, s.Kazahanad("status", "--json").OK(t), &st)
	check("status --json", st)
	code, body := s.Get("/status.json")
	st = daemon.Status{}
	if err := json.Unmarshal([]byte(body), &st); err != nil || code != http.StatusOK {
		t.Errorf("/status.json answers %d, %v", code, err)
	}
	check("/status.json", st)
	for _, want := range []string{"74968 more; 75000 in all, 75000 of them usable, the last of which ends in ", "throughput     75000 of at most 75000"} {
		if text := s.Kazahanad("status").OK(t); !strings.Contains(text, want) {
			t.Errorf("status does not say %q:\n%s", want, text)
		}
	}
	if _, metrics := s.Get("/metrics"); !strings.Contains(metrics, "kazahana_leases_active{service=\"default\"} 75000\n") {
		t.Error("kazahana_leases_active is another")
	}
	c.ID()
	d.Kill() // giving back so many would take long
}

// The page shows the leases that the status lists, and counts the others.
func lookAtManyLeases(t *testing.T, b *browser.Browser) {
	s := newSite(t)
	address := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	s.Start("--admin-listen", address, "--provider", "memory:?bit_id=21&bit_seq=1", "--max-throughput-per-ms", "200")
	c := s.Dial()
	await.Eventually(t, "the leases are held", func() bool { return c.Status().Services[0].LeasesHeld == 100 })
	tab := b.Open(t, "http://"+address+"/", desk)
	tab.Await(`document.querySelector("#live").dataset.state === "live"`)
	var bars int
	tab.Eval(`document.querySelectorAll(".lease").length`, &bars)
	if text := tab.Text(".more-leases"); bars != daemon.MaxListedLeases ||
		!strings.HasPrefix(text, "And 68 more. Of 100 in all, 100 are usable; the last of them ends in ") {
		t.Errorf("%d bars and %q", bars, text)
	}
}
