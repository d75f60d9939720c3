//go:build linux

package process

import (
	"os"
	"runtime"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMemoryCounts(t *testing.T) {
	before, err := memory(os.Getpid())
	must.Succeed(t, err)
	const more = 64 << 20
	touched := make([]byte, more)
	for i := 0; i < more; i += 4096 {
		touched[i] = 1
	}
	after, err := memory(os.Getpid())
	runtime.KeepAlive(touched)
	if err != nil || after-before < more*9/10 {
		t.Errorf("%d bytes, then %d (%v)", before, after, err)
	}
	if _, err := memory(1 << 23); err == nil {
		t.Error("a process that does not exist is in memory")
	}
}
