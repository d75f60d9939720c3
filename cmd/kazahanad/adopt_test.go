package main

import (
	"slices"
	"testing"
)

// TestLeaseOfAnotherProviderIsNotAdopted: what one provider granted means
// nothing to another, nor to another range of the same one. Adopted all the
// same, it would be a second user of whatever the new provider grants there.
func TestLeaseOfAnotherProviderIsNotAdopted(t *testing.T) {
	t.Parallel()
	for name, urls := range map[string][2]string{
		"another file":  {"a.db?ids=5-5", "b.db?ids=5-5"},
		"another range": {"a.db?ids=100-200", "a.db?ids=5-5"},
		"another pool":  {"a.db?ids=5-5", "a.db?ids=5-5&pool=other"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			d := s.start("--provider", "sqlite:"+s.path(urls[0]))
			s.dial().id()
			first := s.dial().lease()
			d.kill()
			// Another daemon lives on the provider that comes next.
			other := newSite(t)
			next := "sqlite:" + s.path(urls[1])
			other.start("--provider", next)
			regular := map[string]any{"regular_only": true}
			theirs := other.dial().ids(1000, regular)
			s.start("--provider", next, "--startup-wait", "0")
			c := s.dial()
			if c.status().Mode == "regular" {
				t.Errorf("a lease is in use (%+v, before the restart %+v), and the only machine ID is the other daemon's", c.lease(), first)
			}
			for _, id := range c.ids(1000) {
				if _, twice := slices.BinarySearch(theirs, id); twice {
					t.Fatalf("%d was made by both daemons", id)
				}
			}
		})
	}
}

// TestFailedStartKeepsTheLease: a start that comes to nothing gives back no
// lease that an earlier run held; the next one goes on with it.
func TestFailedStartKeepsTheLease(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.start()
	s.dial().id()
	first := s.dial().lease()
	d.kill()
	writeFile(t, s.path("file"), "")
	s.launch("--admin-listen", "unix:"+s.path("file/admin.sock")).failsToStart(exitFailure)
	s.start()
	if again := s.dial().lease(); again.MachineID != first.MachineID || again.CreatedMS != first.CreatedMS {
		t.Errorf("the lease was %+v, and is %+v", first, again)
	}
}
