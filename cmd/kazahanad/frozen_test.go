package main

import (
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
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
	d := s.Start(s.Brief("--provider", "sqlite:"+path+"?term=2s&quarantine=1s", "--store", "none", "--provider-timeout", "300ms")...)
	c := s.Dial()
	last := c.ID()
	disk.Freeze()
	defer disk.Thaw()
	asked := func() {
		t.Helper()
		c.Must("Ping", nil)
		if id := c.ID(); id <= last {
			t.Errorf("%d came after %d", id, last)
		} else {
			last = id
		}
	}
	await.Eventually(t, "fallback", func() bool {
		asked()
		return strings.HasPrefix(c.Status().Mode, "fallback")
	})
	await.Eventually(t, "the cause names the file", func() bool {
		cause := c.Status().Services[0].Cause
		return strings.Contains(cause, path) && strings.Contains(cause, "not answer")
	})
	await.Eventually(t, "the log names the file", func() bool {
		text := d.Log.String()
		return strings.Contains(text, "failed to allocate worker id") && strings.Contains(text, path)
	})
	disk.Thaw()
	await.Eventually(t, "regular IDs again", func() bool {
		asked()
		return c.Status().Mode == "regular"
	})
	d.Terminate()
}
