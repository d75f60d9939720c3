package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/wire"
)

var (
	// errWaits: the answer comes later; c.waits is what it waits for.
	errWaits = errors.New("the request waits")
	// errHeavy: the request takes longer than others may be kept waiting.
	errHeavy = errors.New("the request is too much for the lane")
)

const (
	// maxLaneBatch is how many IDs of one request may be made in the lane, where
	// everybody else waits meanwhile.
	maxLaneBatch = 4096
	// maxLaneTexts is the same for IDs as text.
	maxLaneTexts = 256
)

// heavy reports whether the answer takes longer than others may be kept
// waiting, or more memory than a peer that does not read it may take.
func (r *idRequest) heavy() bool {
	if r.format == formatInt {
		return r.want.Count > maxLaneBatch
	}
	return r.want.Count > maxLaneTexts
}

// waiting is a request that waits for IDs.
type waiting struct {
	request idRequest
	pending *generator.Pending
	method  *countedMethod
	began   time.Duration // since the server's start
}

// enter counts a request that waits, unless there are too many.
func (s *Server) enter(pending *generator.Pending) error {
	err := s.countWaiting()
	if err != nil {
		pending.Cancel(err)
	}
	return err
}

func (s *Server) countWaiting() error {
	most := s.limits.Load().MaxInFlight
	if s.inFlight.Add(1) <= int64(most) {
		return nil
	}
	s.inFlight.Add(-1)
	return wire.Errorf(wire.CodeOverloaded, "%d requests are waiting already, and more may not: see max_in_flight", most)
}

// await waits for the IDs of a request that was counted by enter. Answers that
// are ready do not wait with it.
func (c *conn) await(ctx context.Context, pending *generator.Pending) ([]generator.Range, error) {
	defer c.server.inFlight.Add(-1)
	c.waiting.Store(true)
	defer c.waiting.Store(false)
	if len(c.wire.Unsent()) > 0 && c.wire.Flush() != nil {
		pending.Cancel(errHungUp)
		return nil, errHungUp
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	return pending.Wait(ctx)
}

// resume answers a request that began to wait in the lane.
func (c *conn) resume(ctx context.Context, w *waiting) {
	ranges, err := c.await(ctx, w.pending)
	c.conclude(w, ranges, err)
}

// conclude answers a request that has waited.
func (c *conn) conclude(w *waiting, ranges []generator.Range, err error) {
	if err == nil {
		c.ranges = ranges
		c.reply(w.request)
	}
	c.server.finish(c, w.request.id, w.method, w.began, err)
}
