// Package refusals counts refusals because of a limit. From here they reach the log, the metrics,
// health, doctor and the status page.
package refusals

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// A limit has the name of its configuration key, or one of these.
const (
	OpenFiles        = "LimitNOFILE" // in the unit
	AdminConnections = "admin_connections"
	Disk             = "disk" // below the store: it is full
	Holds            = "holds"
	LongAnswers      = "long_answers"
	StoreCalls       = "store_calls"
	Activations      = "placement_activations"
	Kinds            = "placement_kinds"
	Watches          = "placement_watches"
)

// Count is how much one limit has refused.
type Count struct {
	Limit   string `json:"limit"`
	Refused uint64 `json:"refused"` // since the start
	LastMS  int64  `json:"last_ms"` // Unix ms of the last refusal
}

// Recently is how long a refusal counts as overload.
const Recently = time.Minute

// logRepeat is the least time between two lines about one limit.
const logRepeat = time.Minute

// Counter counts refusals. Limits are few, and clients cannot add any. nil counts nothing.
type Counter struct {
	log   *zap.Logger
	count func(limit string)

	mu     sync.Mutex
	limits map[string]*entry
}

type entry struct {
	Count
	loggedMS int64
	unlogged uint64
}

// New returns a counter. count is called for each refusal.
func New(log *zap.Logger, count func(limit string)) *Counter {
	return &Counter{log: log.With(zap.String("component", "refusals")), count: count, limits: map[string]*entry{}}
}

// Refuse counts a refusal. why is for the log: it names the users and their shares. It does not
// block.
func (c *Counter) Refuse(limit, why string) {
	if c == nil {
		return
	}
	c.count(limit)
	nowMS := time.Now().UnixMilli()
	c.mu.Lock()
	e := c.limits[limit]
	if e == nil {
		e = &entry{Count: Count{Limit: limit}}
		c.limits[limit] = e
	}
	e.Refused++
	e.LastMS = nowMS
	unlogged := e.unlogged
	log := nowMS-e.loggedMS >= logRepeat.Milliseconds()
	if log {
		e.loggedMS, e.unlogged = nowMS, 0
	} else {
		e.unlogged++
	}
	c.mu.Unlock()
	if log {
		c.log.Warn("a limit is reached: clients are refused", zap.String("limit", limit), zap.String("error", why), zap.Uint64("unmentioned", unlogged))
	}
}

// Recent are the limits that refused something in the last minute, the latest first.
func (c *Counter) Recent() []Count {
	recent := []Count{}
	if c == nil {
		return recent
	}
	since := time.Now().Add(-Recently).UnixMilli()
	c.mu.Lock()
	for _, e := range c.limits {
		if e.LastMS >= since {
			recent = append(recent, e.Count)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(recent, func(x, y Count) int {
		return cmp.Or(cmp.Compare(y.LastMS, x.LastMS), cmp.Compare(x.Limit, y.Limit))
	})
	return recent
}

// String says which limit is reached.
func (c Count) String() string {
	return fmt.Sprintf("%s is reached: %d refused since the start, the last at %s", c.Limit, c.Refused, time.UnixMilli(c.LastMS).UTC().Format(time.RFC3339))
}
