package lock_test

// Locks that a host renews for the holder.
var holdScenarios = map[string]struct{ kind, script string }{
	"a held lock is renewed": {"notified", `
		holder holds
		holder has 1
		h asked
		1h
		holder has 1
		h asked 355..365
		holder drops
		holder dropped
		store RELEASED 1
		2h
		holder lost 0
		holder drops
		holder dropped`},
	"the end of a holding wakes the first in line": {"plain", `
		holder holds
		next acquires wait=ever
		5s
		next waits
		holder drops
		holder dropped
		next has 2 at=5s`},
	"a refused renewal is a loss, told once": {"notified", `
		a holds
		a has 1
		store freed a
		1h
		a lost 1 not-owned by=11s
		a drops
		a dropped`},
	"a store that is down: the holder knows before the end": {"notified", `
		holder holds
		holder has 1
		15s
		h all way down
		h asked
		39999ms
		holder lost 1 expired from=37s by=40s
		h asked 3..40
		1h
		holder lost 1`},
	"a store that is frozen: the holder knows before the end": {"notified", `
		holder holds
		holder has 1
		15s
		h all way 3s down
		h asked
		39999ms
		holder lost 1 expired from=37s by=40s
		h asked 3..40
		1h
		holder lost 1`},
	"a short outage is survived": {"notified", `
		holder holds
		9s
		h all way down
		24s
		h up
		1h
		holder has 1
		holder lost 0`},
	"what goes astray: a newcomer learns it at once, and a holder keeps the lock": {"notified", `
		holder holds
		9s
		h all way astray
		next acquires wait=ever
		next is astray at=9s
		24s
		h up
		1h
		holder has 1
		holder lost 0`},
	"a release that goes astray: no waiter has to wait for its end": {"", `
		h acquire back down once
		h release way astray
		first acquires
		first is down
		next acquires wait=ever
		10s
		next is astray`},
	"a suspended machine: timers stood still, and the lease ended": {"notified", `
		holder holds
		holder has 1
		2s
		h suspends 1h
		3s
		holder lost 1`},
	"what is left counts from before a slow renewal was sent": {"notified", `
		holder holds
		holder has 1
		9s
		h all back 2s
		12100ms
		h up
		h all way down
		1h
		holder lost 1 from=38500ms by=38501ms`},
	"the holder's own release is no loss": {"notified", `
		holder holds
		holder has 1
		holder frees
		holder did
		next acquires
		29s
		holder drops
		holder dropped
		next has 2
		holder lost 0`},
	"a refusal during the holder's own release is no loss": {"notified", `
		holder holds
		holder has 1
		h renew way 1s
		h release back 1s
		10500ms
		holder frees
		1h
		store RELEASED 1
		holder lost 0`},
	"the holder's own release fails: it holds on": {"notified", `
		holder holds
		h all way down
		holder frees
		holder did down
		h up
		1h
		holder has 1
		holder lost 0`},
	"a renewal by the holder": {"notified", `
		holder holds
		holder has 1
		holder renews ttl=29999ms
		holder did invalid
		holder renews ttl=2m
		holder did
		10m
		h all way down
		11m20s
		store ACTIVE 1
		holder lost 0`},
	"a renewal for too long a term changes nothing": {"notified", `
		store limits 10m
		holder holds
		holder has 1
		holder renews ttl=1h
		holder did invalid
		1h
		holder has 1
		holder lost 0
		holder renews ttl=30s
		holder did`},
	"the host renews before a renewal for too long a term is refused": {"notified", `
		store limits 10m
		holder holds
		holder has 1
		h renew way 15s once
		holder renews ttl=1h
		15s
		holder did invalid
		1h
		holder has 1
		holder lost 0`},
	"a renewal for too long a term, whose outcome is unknown": {"notified", `
		store limits 10m
		holder holds
		holder has 1
		h renew way down once
		holder renews ttl=1h
		holder did down
		1h
		holder has 1
		holder lost 0`},
	"a longer renewal whose answer is lost: the host goes on with it": {"notified", `
		holder holds
		holder has 1
		h renew back down once
		holder renews ttl=2m
		holder did down
		10m
		h all way down
		11m20s
		store ACTIVE 1
		holder lost 0`},
	"a new connection takes over": {"notified", `
		holder holds id=x
		holder has 1
		holder' holds id=x
		holder' has 1
		holder drops
		holder dropped
		1h
		store ACTIVE 1
		holder lost 0
		holder' lost 0
		holder' drops
		holder' dropped
		store RELEASED 1`},
	"a new connection during the old one's release": {"notified", `
		holder holds id=x
		holder has 1
		h release way 1s
		holder drops
		500ms
		holder' holds id=x
		holder' is reused
		1500ms
		store RELEASED 1`},
	"a new connection whose answer comes after the old one's release": {"notified", `
		holder holds id=x
		holder has 1
		h acquire back 1s
		holder' holds id=x
		500ms
		holder drops
		1s
		holder' is reused`},
	"a new connection is refused too late: the old one goes on": {"notified", `
		holder holds id=x ttl=2s
		holder has 1
		h renew way 2500ms once
		holder' holds id=x ttl=2s
		3s
		holder' is expired
		1h
		holder has 1
		holder lost 0`},
	"the last renewals were carried out, and unknown: the lock is released": {"notified", `
		holder holds
		holder has 1
		h all back down
		30s
		holder lost 1
		store RELEASED 1`},
	"a new connection whose renewal's answer comes after the old one's release": {"notified", `
		holder holds id=x
		holder has 1
		h renew back 1s
		holder' holds id=x
		500ms
		holder drops
		600ms
		store RELEASED 1
		1s
		holder' is reused`},
	"a new connection whose renewal's answer comes after a release by name": {"notified", `
		holder holds id=x
		holder has 1
		h renew back 1s
		holder' holds id=x
		500ms
		holder frees
		600ms
		store RELEASED 1
		1s
		holder' is reused`},
	"a lock is asked for without holding it, during its release": {"notified", `
		holder holds id=x
		holder has 1
		h release way 1s
		holder drops
		500ms
		holder' acquires id=x
		holder' is reused`},
	"a new connection after the loss: the lost lease is being released": {"notified", `
		holder holds id=x
		holder has 1
		h renew back down
		h release way 2s
		29s
		holder lost 1
		h up
		holder' holds id=x
		holder' is reused
		holder' acquires id=x
		holder' is reused
		31s
		store RELEASED 1`},
	"a new connection after the loss: its answer comes after the release": {"notified", `
		holder holds id=x
		holder has 1
		h renew back down
		h release way 2s
		29s
		holder lost 1
		h up
		h renew back 2s
		holder' holds id=x
		30900ms
		store RELEASED 1
		holder' waits
		31s
		holder' is reused`},
	"a renewal never returns": {"notified", `
		holder holds
		holder has 1
		h renew way 1h
		h all way down
		30s
		holder lost 1 by=30s
		h closes 1s`},
	"a release outlasts an outage": {"notified", `
		holder holds
		h all way down
		holder drops
		1s
		h up
		4s
		holder dropped
		store RELEASED 1`},
	"a failed own release of a holder who is gone": {"notified", `
		holder holds
		holder has 1
		h release way 2s down once
		holder frees
		holder drops
		3s
		store RELEASED 1
		holder lost 0`},
	"an own release of a holder who is gone": {"notified", `
		holder holds
		holder has 1
		h release way 2s once
		holder frees
		holder drops
		2s
		holder did
		h asked
		1h
		h asked 0..0
		store RELEASED 1
		holder lost 0`},
	"an own release that fails after the end: the loss is told": {"notified", `
		holder holds ttl=2s
		holder has 1
		h renew way down
		h release way 5s down once
		holder frees
		4s
		holder lost 0
		6s
		holder did down
		holder lost 1 expired`},
	"a host closes during a holder's own release that fails": {"notified", `
		holder holds
		holder has 1
		h release way 2s down once
		holder frees
		h closes
		store RELEASED 1
		2s
		holder did down`},
	"a refusal during the second own release is no loss": {"notified", `
		holder holds
		holder has 1
		9s
		h release way 500ms down once
		h release back 2s
		holder frees
		holder frees
		1h
		store RELEASED 1
		holder lost 0`},
	"what is held too late is released": {"notified", `
		h acquire way 2s
		holder holds ttl=1s
		3s
		holder is expired
		store RELEASED 1
		holder lost 0`},
	"an unconfirmed holding is released": {"notified", `
		h acquire back down once
		h renew back down
		holder holds wait=ever
		3s
		holder is down
		store RELEASED 1`},
	"an unconfirmed holding of one who may ask again is left to it": {"notified", `
		h acquire back down once
		h renew back down
		holder holds wait=ever id=x
		3s
		holder is down
		store ACTIVE 1`},
}
