package kazahana

import "context"

// Status is the daemon's description of itself, a part of what kazahanad status
// --json prints. Times are Unix milliseconds.
type Status struct {
	Version     string          `json:"version"`
	Features    []string        `json:"features"` // locks and sequences are among them where there is a store
	PID         int             `json:"pid"`
	StartedMS   int64           `json:"started_ms"`
	UptimeMS    int64           `json:"uptime_ms"`
	Socket      string          `json:"socket"`
	StateDir    string          `json:"state_dir"`
	Provider    string          `json:"provider"` // URL without secrets
	Scope       string          `json:"scope"`    // shared, host or unverified
	Promise     string          `json:"promise"`  // what the scope means, in a sentence
	Mode        string          `json:"mode"`     // of the service that is worst off
	ClockMS     int64           `json:"clock_ms"`
	Connections int             `json:"connections"`
	InFlight    int64           `json:"in_flight"`
	Requests    uint64          `json:"requests_total"`
	Services    []ServiceStatus `json:"services"`
}

// ServiceStatus is one service's part of a Status.
type ServiceStatus struct {
	Service       string        `json:"service"`
	Mode          string        `json:"mode"`  // starting, regular, fallback_cached, fallback_cached_uncertain, fallback_random or unavailable
	Cause         string        `json:"cause"` // of the last failed acquire; empty while all is well
	EpochMS       int64         `json:"epoch_ms"`
	BitTS         int           `json:"bit_ts"`
	ExhaustedMS   int64         `json:"layout_exhausted_ms"` // when bit_ts runs out
	Throughput    int64         `json:"throughput_per_ms"`   // of the usable leases
	MaxThroughput int           `json:"max_throughput_per_ms"`
	Fallback      string        `json:"fallback"`
	ClockSkewMS   int64         `json:"clock_skew_ms"`
	Leases        []LeaseStatus `json:"leases"`
}

// LeaseStatus is a lease that the daemon holds.
type LeaseStatus struct {
	MachineID   int64 `json:"machine_id"`
	BitID       int   `json:"bit_id"`
	BitSeq      int   `json:"bit_seq"`
	CreatedMS   int64 `json:"created_ms"`
	ExpiredMS   int64 `json:"expired_ms"`
	RemainingMS int64 `json:"remaining_ms"` // until it expires; 0 once it has
	Usable      bool  `json:"usable"`
}

// Status asks the daemon for its status.
func (c *Client) Status(ctx context.Context) (st Status, err error) {
	err = c.Call(ctx, "Status", &st)
	return st, err
}
