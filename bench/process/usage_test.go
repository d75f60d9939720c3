//go:build linux

package process

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestCPUTimeGrows(t *testing.T) {
	before, err := CPUTime(os.Getpid())
	must.Succeed(t, err)
	const work = 20 * time.Millisecond
	for after := before; after-before < work; {
		if after, err = CPUTime(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := CPUTime(1 << 23); err == nil {
		t.Error("a process that does not exist has CPU time")
	}
}

func TestResidentCounts(t *testing.T) {
	before, err := Resident(os.Getpid())
	must.Succeed(t, err)
	const more = 64 << 20
	touched := make([]byte, more)
	for i := 0; i < more; i += 4096 {
		touched[i] = 1
	}
	after, err := Resident(os.Getpid())
	runtime.KeepAlive(touched)
	if err != nil || after-before < more*9/10 {
		t.Errorf("%d bytes, then %d (%v)", before, after, err)
	}
	if _, err := Resident(1 << 23); err == nil {
		t.Error("a process that does not exist is in memory")
	}
}

func TestBeside(t *testing.T) {
	if got := (Launcher{Core: -1}).Beside(); got.Core != -1 {
		t.Errorf("not pinned, and beside it pinned to %d", got.Core)
	}
	if got := (Launcher{Core: 0, Self: "self"}).Beside(); got.Self != "self" || got.Core == 0 && runtime.NumCPU() > 1 {
		t.Errorf("beside core 0 of %d: %+v", runtime.NumCPU(), got)
	}
}

// TestAllowOpenFiles: no process may have more than the kernel can count.
func TestAllowOpenFiles(t *testing.T) {
	if err := AllowOpenFiles(10); err != nil {
		t.Error(err)
	}
	if err := AllowOpenFiles(1 << 40); err == nil {
		t.Error("a million million files may be open")
	}
}
