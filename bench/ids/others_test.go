//go:build linux

package ids

import (
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/load"
)

func TestOthers(t *testing.T) {
	var o others
	result := func(cpu, server time.Duration) loadResult {
		return loadResult{Result: load.Result{Elapsed: time.Second}, CPU: cpu, Server: server}
	}
	o.note(result(400*time.Millisecond, 599*time.Millisecond))
	o.note(result(400*time.Millisecond, 602*time.Millisecond)) // the server's is read a moment later
	if got := o.remark(); got != "" {
		t.Errorf("nothing happened, and it says %q", got)
	}
	o.note(result(400*time.Millisecond, 200*time.Millisecond))
	o.note(result(450*time.Millisecond, 500*time.Millisecond))
	if got := o.remark(); !strings.HasPrefix(got, "in 2 of 4 measurements") || !strings.Contains(got, "at most 40%") {
		t.Error(got)
	}
}
