package main

import (
	"strings"
	"testing"
)

// What the URL of a command says wins over the services of the daemon's file, so that the waits of
// docs/changing-providers.md look at the range and the pool that they name.
func TestTermsOfACommandsURL(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.configured(s.withTerms("term: 3m, pool: batch, epoch: 2026-02-01T00:00:00Z, ids: 4-4")...)
	s.leaseOf("batch")
	s.leaseOf("slow")
	leases := func(params string, more ...string) string {
		return s.Kazahanad(append([]string{"leases", "--config", s.Path("kazahanad.yaml"), "--provider", "sqlite:" + s.Leases() + params}, more...)...).OK(t)
	}
	for params, want := range map[string]string{
		"":                    " 0 free",
		"?ids=0-3":            " 4 free",
		"?ids=4-7":            " 3 free",
		"?ids=4-7&pool=batch": " 3 free",
		"?ids=4-7&pool=other": " 4 free",
	} {
		if said := leases(params, "--service", "batch"); !strings.Contains(said, want) {
			t.Errorf("with %s leases says\n%s, want%s", params, said, want)
		}
	}
	// The ranges of other services do not count: slow has no machine ID 4096.
	if said := leases("?ids=4096-8191"); !strings.Contains(said, "machine IDs in use") {
		t.Errorf("leases says\n%s", said)
	}
	s.Kazahanad("leases", "init", "--config", s.Path("kazahanad.yaml"), "--provider", "sqlite:"+s.Leases()+"?ids=4096-8191").OK(t)
}

// An init ends the fence of all pools, so it asks where any of them holds records.
func TestLeasesInitCountsAllPools(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.configured(s.withTerms(ownPool)...)
	s.leaseOf("default")
	s.leaseOf("batch")
	s.leaseOf("slow")
	d.Kill()
	file := []string{"--config", s.Path("kazahanad.yaml")}
	s.Kazahanad(append([]string{"leases", "fence"}, file...)...).OK(t)
	said := func(want string, args ...string) {
		t.Helper()
		s.Kazahanad(append(append([]string{"leases", "init"}, file...), args...)...).Fails(t, exitUsage, "--yes", want)
	}
	said("holds 4 records, 4 of them in use") // batch has two leases
	said("holds 4 records", "--service", "batch")
	said("holds 2 records", "--provider", "sqlite:"+s.Leases()+"?pool=empty") // of batch, which has its pool
}
