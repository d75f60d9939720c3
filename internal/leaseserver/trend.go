package leaseserver

import (
	"fmt"
	"math"
	"time"

	"github.com/kazahana/kazahana/internal/leaseapi"
)

// How long a pool is watched for its forecast.
const (
	trendStep  = 10 * time.Second // between two points, at least
	trendSpan  = time.Hour
	trendLeast = 5 * time.Minute // nothing is forecast from less
	trendTell  = 90 * 24 * time.Hour
	// trendSure is how many standard errors a slope must be above 0, so that ups and
	// downs give no forecast.
	trendSure = 3
)

// trend records the number of taken slots of a pool over time.
type trend struct{ points []trendPoint }

type trendPoint struct{ atMS, taken int64 }

// add adds a point, unless the last one was a moment ago.
func (t *trend) add(atMS, taken int64) {
	if n := len(t.points); n > 0 && atMS-t.points[n-1].atMS < trendStep.Milliseconds() {
		return
	}
	t.points = append(t.points, trendPoint{atMS, taken})
	first := 0
	for atMS-t.points[first].atMS > trendSpan.Milliseconds() {
		first++
	}
	t.points = append(t.points[:0], t.points[first:]...)
}

// forecast is when no free slot will be left if the trend goes on.
func (t *trend) forecast(nowMS, free int64) leaseapi.Forecast {
	if free == 0 {
		return leaseapi.Forecast{FullAt: &nowMS, Note: "no slot is free"}
	}
	var watched time.Duration
	if n := len(t.points); n > 0 {
		watched = time.Duration(t.points[n-1].atMS-t.points[0].atMS) * time.Millisecond
	}
	slope, deviation := t.slope()
	left := float64(free) / slope // in ms
	switch {
	case watched < trendLeast:
		return leaseapi.Forecast{Note: fmt.Sprintf("not known yet: watched for %.0f s of the %.0f min that it takes", watched.Seconds(), trendLeast.Minutes())}
	case slope <= trendSure*deviation || slope <= 0:
		return leaseapi.Forecast{Note: "not filling up"}
	case left > float64(trendTell.Milliseconds()):
		return leaseapi.Forecast{Note: fmt.Sprintf("not within %d days", int(trendTell.Hours()/24))}
	}
	return leaseapi.Forecast{FullAt: new(nowMS + int64(left)), Note: "if it goes on as in the time watched"}
}

// slope is the slope of the best straight line, in slots per ms, and its standard error.
func (t *trend) slope() (slope, deviation float64) {
	n := float64(len(t.points))
	if n < 3 {
		return 0, 0
	}
	var meanX, meanY float64
	at := func(p trendPoint) (x, y float64) { return float64(p.atMS - t.points[0].atMS), float64(p.taken) }
	for _, p := range t.points {
		x, y := at(p)
		meanX, meanY = meanX+x/n, meanY+y/n
	}
	var xx, xy, yy float64
	for _, p := range t.points {
		x, y := at(p)
		xx, xy, yy = xx+(x-meanX)*(x-meanX), xy+(x-meanX)*(y-meanY), yy+(y-meanY)*(y-meanY)
	}
	if xx == 0 {
		return 0, 0
	}
	slope = xy / xx
	return slope, math.Sqrt(max(yy-slope*xy, 0) / (n - 2) / xx)
}
