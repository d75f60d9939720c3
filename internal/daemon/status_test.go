package daemon

import (
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/issuer"
)

func TestStatusInOneLine(t *testing.T) {
	const now = 1_000_000
	lease := func(id int64, remaining time.Duration) issuer.LeaseStatus {
		return issuer.LeaseStatus{MachineID: id, ExpiredMS: now + remaining.Milliseconds(), Usable: remaining > 0}
	}
	one := func(name, mode, cause string, leases ...issuer.LeaseStatus) issuer.ServiceStatus {
		st := issuer.ServiceStatus{Service: name, Mode: mode, Cause: cause, Leases: leases}
		for _, l := range leases {
			if l.Usable {
				st.LeasesUsable++
				st.LeasesEndMS = max(st.LeasesEndMS, l.ExpiredMS)
			}
		}
		return st
	}
	many := one("default", "regular", "", lease(1, 0), lease(2, time.Hour))
	many.LeasesUsable, many.LeasesEndMS = 75_000, now+(2*time.Hour).Milliseconds() // and more that are not listed
	for _, c := range []struct {
		services []issuer.ServiceStatus
		want     string
	}{
		{[]issuer.ServiceStatus{one("default", "regular", "", lease(17, 9*time.Minute+59*time.Second))}, "regular: machine ID 17, ends in 9m"},
		{[]issuer.ServiceStatus{one("default", "regular", "", lease(17, 59*time.Second))}, "regular: machine ID 17, ends in 50s"},
		{[]issuer.ServiceStatus{one("default", "regular", "", lease(17, 0), lease(17, 0), lease(17, 0), lease(17, 0), lease(18, 26*time.Hour))}, "regular: machine ID 18, ends in 26h"},
		{[]issuer.ServiceStatus{one("default", "regular", "", lease(1, time.Minute), lease(2, time.Hour), lease(3, time.Minute), lease(4, 1), lease(5, 1), lease(6, 1))},
			"regular: 6 machine IDs, the last ends in 60m"},
		{[]issuer.ServiceStatus{many}, "regular: 75000 machine IDs, the last ends in 2h"},
		{[]issuer.ServiceStatus{one("default", "starting", "")}, "starting: no lease"},
		{[]issuer.ServiceStatus{one("default", "fallback_cached", "connection refused", lease(17, 0))}, "fallback_cached: no lease: connection refused"},
		{[]issuer.ServiceStatus{one("a", "regular", "", lease(1, time.Minute)), one("b", "unavailable", "full")}, "2 services, the worst of all starting"},
	} {
		if got := (Status{Mode: "starting", ClockMS: now, Services: c.services}).Line(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
