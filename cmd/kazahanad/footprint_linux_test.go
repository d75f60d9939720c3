package main

import (
	"fmt"
	"os"
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
