package runner

import "time"

// mostGap is how long the clocks may go unread without a doubt about what they
// showed meanwhile. Reads are pollInterval apart at most, unless this process was
// stopped.
const mostGap = 10 * pollInterval

// dates bounds the times that a program can have read from this host's wall
// clock, or counted on from such a reading by a clock that nobody sets. So it
// remembers how far the wall clock was ahead of that one at most: a program that
// began while the wall clock was ahead may go on to date IDs by it.
type dates struct {
	begun  bool
	ahead  time.Duration // of Wall, in front of Boot
	looked time.Duration // Boot, at the latest look
	gap    bool          // the clocks went unread for too long
}

// look takes in a reading of both clocks. Boot must have been read first: what
// passes in between then only moves the bound to a later time.
func (d *dates) look(boot time.Duration, wallNS int64) {
	ahead := time.Duration(wallNS) - boot
	if !d.begun || ahead > d.ahead {
		d.ahead = ahead
	}
	d.gap = d.gap || d.begun && boot-d.looked > mostGap
	d.begun, d.looked = true, boot
}

// lastMS is the latest Unix millisecond that was read by the time of the latest
// look.
func (d *dates) lastMS() int64 { return (d.looked + d.ahead).Milliseconds() }
