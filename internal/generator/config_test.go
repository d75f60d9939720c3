package generator

import (
	"errors"
	"testing"
	"time"
)

// TestSetConfigReachesThoseWhoWait: a request that a higher limit can serve does
// not wait for the time that the lower one meant, and the stream ascends.
func TestSetConfigReachesThoseWhoWait(t *testing.T) {
	inBubble(t, func(o *Options) { o.Config.MaxThroughput = 10 }, func(t *testing.T, r *rig) {
		r.grant(7)
		before := r.next(t, 10)
		_, pending, err := r.Start(0, Request{Count: 100, Timeout: time.Minute}, nil)
		if pending == nil || err != nil {
			t.Fatalf("100 IDs beyond the limit of 10: %v", err)
		}
		r.SetConfig(Config{MaxThroughput: 256, Fallback: FallbackNone, MaxBackwardMS: 5000})
		ranges, err := pending.Wait(t.Context())
		if err != nil || len(ranges) != 1 || ranges[0].Count != 100 || ranges[0].Start <= before[9] {
			t.Errorf("%+v, %v", ranges, err)
		}
	})
}

// TestSetConfigEndsTheRun: the limits in force are those of the moment, also
// within a millisecond that the old ones have cut a run from.
func TestSetConfigEndsTheRun(t *testing.T) {
	// The run that the first ID begins is 256 long.
	onLease(t, 1, func(t *testing.T, r *rig) {
		r.SetConfig(Config{MaxThroughput: 5, Fallback: FallbackNone, MaxBackwardMS: 5000})
		if ids, err := r.try(5, 0); err == nil {
			t.Errorf("%d IDs in a millisecond that allows 5 and had given 1", len(ids)+1)
		}
		time.Sleep(time.Millisecond)
		r.Update(nil, nil, errors.New("down"))
		var none *LeaseAcquisitionError
		if _, err := r.try(1, 0); !errors.As(err, &none) {
			t.Errorf("fallback is none now: %v", err)
		}
	})
}
