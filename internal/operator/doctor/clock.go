package doctor

import "time"

// Clock are the facts about this host's clock.
type Clock struct {
	Known        bool // the kernel was asked whether it is synchronised
	Synchronised bool
	Compared     string        // the owner of the clock it was compared with; "" = none
	Ahead        time.Duration // of that clock, at the middle of the request
	Within       time.Duration // the error of Ahead at most
}

// compare notes a reading of another clock, which happened between began and ended, and
// which is exact within its resolution.
func (c *Clock) compare(whose string, began, ended, other time.Time, resolution time.Duration) {
	half := ended.Sub(began) / 2
	c.Compared, c.Ahead, c.Within = whose, began.Add(half).Sub(other), half+resolution
}

// How far a clock may be off before doctor warns, and before it fails. Beyond the
// second limit daemons send no releases, and lease servers refuse them.
const (
	skewNoticed = 500 * time.Millisecond
	skewAllowed = 30 * time.Second
)

// Clock judges the clock.
func (r *Report) Clock(c Clock) {
	const step = "clock"
	before := len(*r)
	off := max(c.Ahead.Abs()-c.Within, 0)
	direction := "ahead of"
	if c.Ahead < 0 {
		direction = "behind"
	}
	switch ahead := c.Ahead.Abs().Round(time.Millisecond); {
	case c.Compared == "":
	case off > skewAllowed:
		r.Fail(step, "Set the clock: leases are refused or not handed back when it is this far off.", "this clock is %v %s that of %s", ahead, direction, c.Compared)
	case off > skewNoticed:
		r.Warn(step, "Synchronise the clocks of this host and of the provider's (chrony, systemd-timesyncd).", "this clock is %v %s that of %s", ahead, direction, c.Compared)
	}
	switch {
	case !c.Known:
		r.Unknown(step, "Look by hand whether something synchronises this clock.", "the system does not report whether its clock is synchronised")
	case !c.Synchronised:
		r.Warn(step, "Run chrony or systemd-timesyncd on this host; docs/clocks.md has their settings.", "the kernel says that nothing synchronises its clock")
	case len(*r) == before && c.Compared != "":
		r.OK(step, "the clock is synchronised, and %v from that of %s", c.Ahead.Abs().Round(time.Millisecond), c.Compared)
	case len(*r) == before:
		r.OK(step, "the clock is synchronised")
	}
}
