//go:build linux

package ids

import "fmt"

// others counts measurements that the rest of the machine took part in: where
// server and load generator keep their core busy, what they did not get of it,
// others had.
type others struct {
	measurements, disturbed int
	most                    float64 // share of the core
}

// tolerable is what the kernel itself needs, and a quiet machine's other
// processes.
const tolerable = 0.03

func (o *others) note(r loadResult) {
	o.measurements++
	share := 1 - (r.CPU+r.Server).Seconds()/r.Elapsed.Seconds()
	if share > tolerable {
		o.disturbed++
	}
	o.most = max(o.most, share)
}

// remark is "" if there is nothing to say.
func (o *others) remark() string {
	if o.disturbed == 0 {
		return ""
	}
	return fmt.Sprintf("in %d of %d measurements other processes had more than %.0f%% of the core, at most %.0f%%: "+
		"look at the medians rather than at the extremes, or repeat on a quieter machine", o.disturbed, o.measurements, 100*tolerable, 100*o.most)
}
