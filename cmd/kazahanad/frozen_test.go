package main

import (
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/disktest"
)

// The disk of the lease file is frozen under a daemon: requests, Ping and status go
// on, IDs are regular to the lease's end and then fallback, the log names the file,
// and after the thaw all is as before.
func TestLeaseFileOnAFrozenDisk(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	disk := disktest.Ext4(t)
	path := disk.Dir() + "/leases.db"
	d := s.start(s.brief("--provider", "sqlite:"+path+"?term=2s&quarantine=1s", "--store", "none", "--provider-timeout", "300ms")...)
	c := s.dial()
	last := c.id()
	disk.Freeze()
	defer disk.Thaw()
	asked := func() {
		t.Helper()
		c.must("Ping", nil)
		if id := c.id(); id <= last {
			t.Errorf("%d came after %d", id, last)
		} else {
			last = id
		}
	}
	eventually(t, "fallback", func() bool {
		asked()
		return strings.HasPrefix(c.status().Mode, "fallback")
	})
	eventually(t, "the cause names the file", func() bool {
		cause := c.status().Services[0].Cause
		return strings.Contains(cause, path) && strings.Contains(cause, "not answer")
	})
	eventually(t, "the log names the file", func() bool {
		text := d.log.String()
		return strings.Contains(text, "failed to allocate worker id") && strings.Contains(text, path)
	})
	disk.Thaw()
	eventually(t, "regular IDs again", func() bool {
		asked()
		return c.status().Mode == "regular"
	})
	d.terminate()
}
