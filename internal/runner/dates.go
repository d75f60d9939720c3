package runner

import "time"

// mostGap is the longest trusted time between two readings of the clocks. Readings are
// pollInterval apart at most, unless this process was stopped.
const mostGap = 10 * pollInterval

// dates bounds the times that a program can have read from this host's wall clock, or
// counted on from such a reading by a monotonic clock: a program that started while the
// wall clock was ahead may go on to date IDs by it. So dates remembers how far the wall
// clock was ahead of the boot clock at most.
type dates struct {
	begun  bool
	ahead  time.Duration // of Wall, in front of Boot
	looked time.Duration // Boot, at the latest look
	gap    bool          // the clocks were not read for too long
}

// look takes a reading of both clocks. Boot must be read first: the time between the two
// then only makes the bound later.
func (d *dates) look(boot time.Duration, wallNS int64) {
	ahead := time.Duration(wallNS) - boot
	if !d.begun || ahead > d.ahead {
		d.ahead = ahead
	}
	d.gap = d.gap || d.begun && boot-d.looked > mostGap
	d.begun, d.looked = true, boot
}

// lastMS is the latest Unix millisecond that can have been read up to the latest look.
func (d *dates) lastMS() int64 { return (d.looked + d.ahead).Milliseconds() }
