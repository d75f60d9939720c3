package statuspage

import (
	"context"
	"sync"
	"time"
)

// The length of a page's history and of its steps.
const (
	historyStep  = 2 * time.Second
	historySteps = 150
)

// History remembers the growth of counters in each of the last steps. It is safe for
// concurrent use.
type History struct {
	mu   sync.Mutex
	last map[string]uint64
	ends int64               // Unix ms of the last step's end
	grew map[string][]uint64 // the latest step last; a newer counter has fewer
}

// Past is the content of a History.
type Past struct {
	StepMS int64               `json:"step"`
	EndMS  int64               `json:"ends"` // Unix ms, of the last step
	Grew   map[string][]uint64 `json:"grew"` // by counter, the latest step last
}

// Run reads the counters with look after each step, until ctx is done.
func (h *History) Run(ctx context.Context, look func() map[string]uint64) {
	h.add(time.Now().UnixMilli(), look())
	ticker := time.NewTicker(historyStep)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			h.add(time.Now().UnixMilli(), look())
		}
	}
}

func (h *History) add(nowMS int64, counts map[string]uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != nil {
		if h.grew == nil {
			h.grew = map[string][]uint64{}
		}
		for name, n := range counts {
			grown := append(h.grew[name], n-min(h.last[name], n))
			h.grew[name] = grown[max(0, len(grown)-historySteps):]
		}
	}
	h.last, h.ends = counts, nowMS
}

// Past returns the history so far.
func (h *History) Past() Past {
	h.mu.Lock()
	defer h.mu.Unlock()
	past := Past{StepMS: historyStep.Milliseconds(), EndMS: h.ends, Grew: map[string][]uint64{}}
	for name, grown := range h.grew {
		past.Grew[name] = append([]uint64{}, grown...)
	}
	return past
}
