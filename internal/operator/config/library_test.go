package config

import (
	"strings"
	"testing"
)

// A program with package embed takes machine IDs from the file of its user's daemon. Settings for
// a daemon, or for the program's own unit, say nothing to it.
func TestLibrary(t *testing.T) {
	daemon := []string{"KAZAHANA_PROVIDER=none:", "KAZAHANA_NONSENSE=1", "STATE_DIRECTORY=/var/lib/shop", "HOME=/home/a", "XDG_RUNTIME_DIR=/" + strings.Repeat("x", 120)}
	for _, test := range []struct {
		name    string
		fields  map[string]string
		environ []string
		uid     int
		want    string // the provider
		err     string
	}{
		{"root", map[string]string{"StateDir": "/s"}, daemon, 0, "sqlite:/var/lib/kazahana/leases.db", ""},
		{"user", map[string]string{"StateDir": "/s"}, daemon, 7, "sqlite:/home/a/.local/state/kazahana/leases.db", ""},
		{"state home", map[string]string{"StateDir": "/s"}, append(daemon, "XDG_STATE_HOME=/x"), 7, "sqlite:/x/kazahana/leases.db", ""},
		{"without state", map[string]string{"StateDir": "none"}, daemon, 7, "sqlite:/home/a/.local/state/kazahana/leases.db", ""},
		{"named", map[string]string{"StateDir": "/s", "Provider": "static:5"}, nil, 7, "static:5", ""},
		{"no home", map[string]string{"StateDir": "/s"}, nil, 7, "", "Config.Provider is not set, and neither XDG_STATE_HOME nor HOME"},
		{"odd home", map[string]string{"StateDir": "/s"}, []string{"HOME=/a#b"}, 7, "", "holds a character that a provider URL cannot"},
		{"no state", map[string]string{}, daemon, 7, "", "Config.StateDir is not set"},
		{"in a pod", map[string]string{"StateDir": "/s"}, append(daemon, "KUBERNETES_SERVICE_HOST=10.0.0.1"), 7, "", "inside Kubernetes there is no default"},
		{"wrong", map[string]string{"StateDir": "/s", "BitTS": "7"}, daemon, 7, "", "bit_ts in Config.BitTS"},
	} {
		var s Serve
		err := s.LoadFields(test.fields, Process{Environ: test.environ, UID: test.uid})
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
