//go:build linux

package abuse

import (
	"testing"
	"time"
)

// An attack that did not take place shows nothing: its row does not pass.
func TestVerdict(t *testing.T) {
	const mib = 1 << 20
	fast, renewed, late := []time.Duration{time.Millisecond}, []time.Duration{20 * time.Millisecond}, []time.Duration{time.Second}
	for name, test := range map[string]struct {
		load  load
		quiet bool
		at    aim
		after int64
		calls []time.Duration
		want  string
	}{
		"requests":                          {load: load{Asked: 100}, calls: fast, want: "holds"},
		"bytes":                             {load: load{Sent: 64 << 10}, calls: fast, want: "holds"},
		"connections":                       {load: load{Dialed: 100}, quiet: true, calls: fast, want: "holds"},
		"nothing":                           {calls: fast, want: "BROKEN"},
		"too few requests":                  {load: load{Dialed: 1000, Asked: 99, Sent: 1000}, calls: fast, want: "BROKEN"},
		"too few connections":               {load: load{Dialed: 99, Asked: 1000}, quiet: true, calls: fast, want: "BROKEN"},
		"one attacker of several is silent": {load: load{Asked: 1000, Idle: 1}, calls: fast, want: "BROKEN"},
		"memory is given back":              {load: load{Asked: 1000}, after: 17 * mib, calls: fast, want: "holds"},
		"memory is kept":                    {load: load{Asked: 1000}, after: 17*mib + 1, calls: fast, want: "keeps"},
		"the innocent waits":                {load: load{Asked: 1000}, calls: late, want: "slow"},
		"an ID takes as long as a renewal":  {load: load{Asked: 1000}, calls: renewed, want: "slow"},
		"a renewal":                         {load: load{Asked: 1000}, at: server, calls: renewed, want: "holds"},
		"a renewal waits":                   {load: load{Asked: 1000}, at: server, calls: late, want: "slow"},
	} {
		r := result{
			attack: attack{users: 2, quiet: test.quiet}, at: test.at, users: true, memory: 128 * mib, load: test.load, before: mib, after: test.after,
			served: &served{calls: test.calls},
		}
		if got := r.verdict(); got != test.want {
			t.Errorf("%s: %s %q, want %s", name, got, r.broken(), test.want)
		}
	}
}
