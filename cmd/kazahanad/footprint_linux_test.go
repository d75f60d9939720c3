package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"
)

// TestDropBinaryPages: the pages go, and the program does not notice.
func TestDropBinaryPages(t *testing.T) {
	before := residentFile(t)
	dropBinaryPages()
	if after := residentFile(t); after >= before {
		t.Errorf("%d kB of files in memory, %d kB before", after, before)
	}
}

func residentFile(t *testing.T) (kB int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(status), "RssFile:")
	if _, err := fmt.Sscan(rest, &kB); !ok || err != nil {
		t.Fatalf("no RssFile: %v", err)
	}
	return kB
}

// The collector works harder before the limit is reached, unless the environment says when.
func TestCollectorFollowsTheMemoryLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	if limit := limitMemory(300 << 20); limit != 300<<20 || debug.SetMemoryLimit(-1) != 200<<20 {
		t.Errorf("of %d bytes the collector may use %d", limit, debug.SetMemoryLimit(-1))
	}
	t.Setenv("GOMEMLIMIT", "1GiB")
	if limitMemory(600 << 20); debug.SetMemoryLimit(-1) != 200<<20 {
		t.Errorf("in spite of GOMEMLIMIT the collector may use %d bytes", debug.SetMemoryLimit(-1))
	}
}
