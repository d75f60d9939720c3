package config

import (
	"strings"
	"testing"
)

// A program with package embed takes machine IDs from the file of its user's daemon. What
// is meant for a daemon, or for the program's own unit, says nothing to it.
func TestLibrary(t *testing.T) {
	daemon := []string{"KAZAHANA_PROVIDER=none:", "KAZAHANA_NONSENSE=1", "STATE_DIRECTORY=/var/lib/shop", "HOME=/home/a", "XDG_RUNTIME_DIR=/" + strings.Repeat("x", 120)}
	for _, test := range []struct {
		name    string
		flags   Flags
		environ []string
		uid     int
		want    string // the provider
		err     string
	}{
		{"root", Flags{StateDir: Given("/s")}, daemon, 0, "sqlite:/var/lib/kazahana/leases.db", ""},
		{"user", Flags{StateDir: Given("/s")}, daemon, 7, "sqlite:/home/a/.local/state/kazahana/leases.db", ""},
		{"state home", Flags{StateDir: Given("/s")}, append(daemon, "XDG_STATE_HOME=/x"), 7, "sqlite:/x/kazahana/leases.db", ""},
		{"without state", Flags{StateDir: Given("none")}, daemon, 7, "sqlite:/home/a/.local/state/kazahana/leases.db", ""},
		{"named", Flags{StateDir: Given("/s"), Provider: Given("static:5")}, nil, 7, "static:5", ""},
		{"no home", Flags{StateDir: Given("/s")}, nil, 7, "", "Config.Provider is not set, and neither XDG_STATE_HOME nor HOME"},
		{"odd home", Flags{StateDir: Given("/s")}, []string{"HOME=/a#b"}, 7, "", "holds a character that a provider URL cannot"},
		{"no state", Flags{}, daemon, 7, "", "Config.StateDir is not set"},
		{"in a pod", Flags{StateDir: Given("/s")}, append(daemon, "KUBERNETES_SERVICE_HOST=10.0.0.1"), 7, "", "inside Kubernetes there is no default"},
		{"wrong", Flags{StateDir: Given("/s"), BitTS: Given("7")}, daemon, 7, "", "bit_ts in Config.BitTS"},
	} {
		s, err := test.flags.Load(Process{Environ: test.environ, UID: test.uid, Library: true})
		switch {
		case test.err != "":
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %v, want %q", test.name, err, test.err)
			}
		case err != nil:
			t.Errorf("%s: %v", test.name, err)
		case s.Provider != test.want:
			t.Errorf("%s: %s, want %s", test.name, s.Provider, test.want)
		}
	}
}
