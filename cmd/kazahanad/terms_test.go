package main

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// withTerms is a configuration of services with terms of their own, in which batch has a pool.
func (s *site) withTerms(batch string) []string {
	return []string{
		fmt.Sprintf("provider: \"sqlite:%s\"", s.Leases()),
		"startup_wait: 30s",
		"services:",
		"  slow: {term: 5m, bit_seq: 10}",
		"  batch: {" + batch + "}",
	}
}

const ownPool = "term: 3m, quarantine: 1m, pool: batch, epoch: 2026-02-01T00:00:00Z, ids: 0-3, max_throughput_per_ms: 512"

// leaseOf is the first lease of a service, after an ID of it.
func (s *site) leaseOf(service string) issuer.LeaseStatus {
	s.T.Helper()
	c := s.Dial()
	c.ID(map[string]any{"service": service, "regular_only": true})
	for _, one := range c.Status().Services {
		if one.Service == service && len(one.Leases) > 0 {
			return one.Leases[0]
		}
	}
	s.T.Fatalf("service %s has no lease", service)
	return issuer.LeaseStatus{}
}

// A daemon's services have terms of their own, without a lease server, and every command sees them.
func TestTermsOfServices(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.configured(s.withTerms(ownPool)...)
	config := []string{"--config", s.Path("kazahanad.yaml")}
	for service, want := range map[string]struct {
		term   time.Duration
		bitSeq int
		leases int
		free   int64
	}{
		"default": {10 * time.Minute, 8, 1, 8192 - 5}, // one with bit_seq 10 has the room of four
		"slow":    {5 * time.Minute, 10, 1, 2048 - 2},
		"batch":   {3 * time.Minute, 8, 2, 2},
	} {
		l := s.leaseOf(service)
		// Seeds 000-6.4-1, 000-6.4-3 and 000-10.1-1.
		if l.ExpiredMS-l.CreatedMS != want.term.Milliseconds() || l.BitSeq != want.bitSeq {
			t.Errorf("%s has the lease %+v", service, l)
		}
		var listed leasesReport
		testkit.DecodeJSON(t, s.Kazahanad(append([]string{"leases", "--json", "--service", service}, config...)...).OK(t), &listed)
		own := 0
		for _, line := range listed.Leases {
			if line.Service == service && line.ExpiredMS-line.CreatedMS == want.term.Milliseconds() && line.BitSeq == want.bitSeq {
				own++
			}
		}
		if own != want.leases || own != len(listed.Leases) || listed.UnusingIDs == nil || *listed.UnusingIDs != want.free {
			t.Errorf("leases of %s: %+v", service, listed)
		}
	}
	table := s.Kazahanad(append([]string{"leases"}, config...)...).OK(t)
	for _, want := range []string{"41/14/8", "41/12/10", "default", "slow"} {
		if !strings.Contains(table, want) || strings.Contains(table, "batch") {
			t.Errorf("leases says\n%s", table)
		}
	}

	// Who made an ID of the pool, and a machine ID of it for a foreign program.
	id := fmt.Sprint(int64(s.Dial().ID(map[string]any{"service": "batch"})))
	var in inspectedJSON
	testkit.DecodeJSON(t, s.Kazahanad(append([]string{"inspect", "--json", "--provider", "sqlite:" + s.Leases(),
		"--service", "batch", "--epoch", "2026-02-01T00:00:00Z", id}, config...)...).OK(t), &in)
	if len(in.Holders) != 1 || in.Holders[0].Service != "batch" {
		t.Errorf("inspect says %+v", in)
	}
	said := s.Kazahanad(append(append([]string{"run", "-q", "--service", "batch", "--min", "0"}, config...), "--", "sh", "-c", "echo $KAZAHANA_MACHINE_ID")...)
	if n := strings.TrimSpace(said.OK(t)); len(n) != 1 || n > "3" {
		t.Errorf("the machine ID is %s", n)
	}
	s.Kazahanad(append(append([]string{"run", "--service", "batch", "--max", "4"}, config...), "--", "true")...).Fails(t, exitUsage, "0-3")
	s.Kazahanad(append([]string{"leases", "--provider", "http://127.0.0.1:1", "--service", "batch"}, config...)...).Fails(t, exitFailure, "http")
	s.Examined([]string{"KAZAHANA_CONFIG=" + config[1]}).Has("provider ok", "no provider fail")
}

var verifications = regexp.MustCompile(`kazahana_provider_request_duration_seconds_count\{op="verify"\} (\d+)`)

// A lease that outlives its daemon is valid on its service's terms, and on no others.
func TestTermsOfAdoptedLeases(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	leases := func() map[string]issuer.LeaseStatus {
		all := map[string]issuer.LeaseStatus{}
		for _, service := range []string{"default", "slow", "batch"} {
			l := s.leaseOf(service)
			l.RemainingMS = 0
			all[service] = l
		}
		return all
	}
	start := func(batch string) *testkit.Instance {
		return s.configured(append(s.withTerms(batch), "verify_interval: 10ms", "admin_listen: unix:"+s.Path("admin.sock"))...)
	}
	d := start(ownPool)
	first := leases()
	d.Kill()
	d = start(ownPool)
	if again := leases(); !maps.Equal(again, first) {
		t.Errorf("the leases were %+v, and are %+v", first, again)
	}
	await.Eventually(t, "the provider is asked whether they are", func() bool {
		_, metrics := s.Get("/metrics")
		found := verifications.FindStringSubmatch(metrics)
		if found == nil {
			return false
		}
		n, err := strconv.Atoi(found[1])
		return err == nil && n >= 30
	})
	if again := leases(); !maps.Equal(again, first) {
		t.Errorf("after verification the leases are %+v, and were %+v", again, first)
	}
	d.Kill()
	// In another pool the lease means nothing; those of the other services stay.
	start(strings.Replace(ownPool, "pool: batch", "pool: other", 1))
	changed := leases()
	if changed["batch"].CreatedMS == first["batch"].CreatedMS || changed["slow"] != first["slow"] || changed["default"] != first["default"] {
		t.Errorf("the leases were %+v, and are %+v", first, changed)
	}
}

// What does not fit together is refused before the start, and at a lease server with the same words.
func TestTermsThatDoNotFit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	check := func(command, services string) testkit.Outcome {
		return s.Kazahanad(command, "--check", "--config", "none", "--provider", "sqlite:"+s.Leases(), "--services", services)
	}
	for services, words := range map[string][]string{
		"{slow: {bit_seq: 9, bit_id: 9}}":  {"services.slow", "its terms together", "41/9/9"},
		"{slow: {bit_ts: 42}}":             {"services.slow (--services): ", `pool "default"`, "choose another pool"},
		"{slow: {ids: 0-99, bit_seq: 16}}": {"services.slow", "ids=0-99"},
	} {
		for _, command := range []string{"serve", "lease-server"} {
			check(command, services).Fails(t, exitUsage, words...)
		}
	}
	// The terms of the URL are of no service here, so that they need not fit.
	s.Kazahanad("serve", "--check", "--config", "none", "--store", "none", "--provider", "kubernetes:ids", "--services", "{default: {bit_seq: 10}}").OK(t)
	// A pool that others use keeps its timeline: the start, its check of the file and doctor say so.
	d := s.configured(s.withTerms(ownPool)...)
	s.leaseOf("batch")
	d.Terminate()
	other := "services={batch: {pool: batch, epoch: 2026-03-01T00:00:00Z}}"
	args := []string{"--provider", "sqlite:" + s.Leases(), "--" + other}
	s.Launch(args...).FailsToStart(exitUsage)
	s.Examined(nil, args...).Has("provider fail")
}
