package main

import (
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, nil)
}

// site is a place for daemons, with what only the tests of this package do there.
type site struct{ *testkit.Site }

func newSite(t *testing.T) *site {
	t.Helper()
	return &site{testkit.NewSite(t)}
}
