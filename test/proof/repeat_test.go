package proof

import (
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// TestOffRepeats: one seed replays one run exactly, also with a rule switched off.
func TestOffRepeats(t *testing.T) {
	ring.Deep(t)
	for r := noRule; r < allRules; r++ {
		for seed := range uint64(6) {
			s := setting{seed: seed, focus: r, off: r != noRule}
			a, b := play(t, s), play(t, s)
			if a.digest != b.digest || a.fault != b.fault {
				t.Errorf("%v seed %d: %q %q", r, seed, a.fault, b.fault)
			}
		}
	}
}
