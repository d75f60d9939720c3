package main

import (
	"slices"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
)

// TestLeaseOfAnotherProviderIsNotAdopted: a grant of one provider means nothing to
// another, nor to another range of the same one. Adopted all the same, it would be a
// second user of the new provider's grants there.
func TestLeaseOfAnotherProviderIsNotAdopted(t *testing.T) {
	t.Parallel()
	for name, urls := range map[string][2]string{
		"another file":  {"a.db?ids=5-5", "b.db?ids=5-5"},
		"another range": {"a.db?ids=100-200", "a.db?ids=5-5"},
		"another pool":  {"a.db?ids=5-5", "a.db?ids=5-5&pool=other"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			d := s.Start("--provider", "sqlite:"+s.Path(urls[0]))
			s.Dial().ID()
			first := s.Dial().Lease()
			d.Kill()
			// Another daemon lives on the provider that comes next.
			other := newSite(t)
			next := "sqlite:" + s.Path(urls[1])
			other.Start("--provider", next)
			regular := map[string]any{"regular_only": true}
			theirs := other.Dial().IDs(1000, regular)
			s.Start("--provider", next, "--startup-wait", "0")
			c := s.Dial()
			if c.Status().Mode == "regular" {
				t.Errorf("a lease is in use (%+v, before the restart %+v), and the only machine ID is the other daemon's", c.Lease(), first)
			}
			for _, id := range c.IDs(1000) {
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
	d := s.Start()
	s.Dial().ID()
	first := s.Dial().Lease()
	d.Kill()
	testkit.WriteFile(t, s.Path("file"), "")
	s.Launch("--admin-listen", "unix:"+s.Path("file/admin.sock")).FailsToStart(exitFailure)
	s.Start()
	if again := s.Dial().Lease(); again.MachineID != first.MachineID || again.CreatedMS != first.CreatedMS {
		t.Errorf("the lease was %+v, and is %+v", first, again)
	}
}
