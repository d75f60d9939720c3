package main

import (
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/disktest"
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
	if st := c.status(); !strings.Contains(st.Services[0].Cause, path) || !strings.Contains(st.Services[0].Cause, "not answer") {
		t.Errorf("the cause is %q", st.Services[0].Cause)
	}
	if text := d.log.String(); !strings.Contains(text, "keep alive failed, circuit breaking") || !strings.Contains(text, path) {
		t.Errorf("the log does not name the file")
	}
	disk.Thaw()
	eventually(t, "regular IDs again", func() bool {
		asked()
		return c.status().Mode == "regular"
	})
	d.terminate()
}
