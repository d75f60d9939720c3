package memlimit

import (
	"runtime/debug"
	"testing"
)

// The collector works harder before the limit is reached, unless the environment says when.
func TestCollectorFollowsTheMemoryLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	if limit := Set(300 << 20); limit != 300<<20 || debug.SetMemoryLimit(-1) != 200<<20 {
		t.Errorf("of %d bytes the collector may use %d", limit, debug.SetMemoryLimit(-1))
	}
	t.Setenv("GOMEMLIMIT", "1GiB")
	if Set(600 << 20); debug.SetMemoryLimit(-1) != 200<<20 {
		t.Errorf("in spite of GOMEMLIMIT the collector may use %d bytes", debug.SetMemoryLimit(-1))
	}
}
