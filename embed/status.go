package embed

// Status is what a Generator is doing now. Its JSON has the names of kazahanad status
// --json. Times are Unix milliseconds.
type Status struct {
	Service   string `json:"service"`
	Mode      string `json:"mode"`     // what the next ID will be: starting, regular, fallback_cached, fallback_cached_uncertain, fallback_random or unavailable
	Cause     string `json:"cause"`    // of the last failed acquire; empty while all is well
	Provider  string `json:"provider"` // URL without secrets
	Scope     string `json:"scope"`    // how far uniqueness reaches: shared, host, unverified or none
	Promise   string `json:"promise"`  // what the scope means, in a sentence
	StateDir  string `json:"state_dir"`
	LiveDir   string `json:"live_dir"`    // this process's folder; empty: leases do not survive a kill -9
	RetryInMS int64  `json:"retry_in_ms"` // until the next attempt to acquire a lease, after a failed one

	EpochMS       int64   `json:"epoch_ms"`
	BitTS         int     `json:"bit_ts"`
	ExhaustedMS   int64   `json:"layout_exhausted_ms"` // when the layout's time runs out
	Throughput    int64   `json:"throughput_per_ms"`   // IDs per ms that the usable leases allow
	MaxThroughput int     `json:"max_throughput_per_ms"`
	ClockSkewMS   int64   `json:"clock_skew_ms"` // provider's clock minus this host's, at the last grant
	Leases        []Lease `json:"leases"`        // that are held, up to 32
	Issued        Issued  `json:"ids_issued"`
}

// Lease is a machine ID that is held for a while.
type Lease struct {
	MachineID   int64 `json:"machine_id"`
	BitID       int   `json:"bit_id"`
	BitSeq      int   `json:"bit_seq"`
	CreatedMS   int64 `json:"created_ms"`
	ExpiredMS   int64 `json:"expired_ms"`
	ReservedMS  int64 `json:"reserved_until_ms"`
	RemainingMS int64 `json:"remaining_ms"` // until it expires; 0 once it has
	Usable      bool  `json:"usable"`
}

// Issued counts the IDs since Open, by kind.
type Issued struct {
	Regular        uint64 `json:"regular"`
	FallbackCached uint64 `json:"fallback_cached"`           // of the last lease's slot: no other holder can make them
	Uncertain      uint64 `json:"fallback_cached_uncertain"` // likewise, beyond its reservation
	FallbackRandom uint64 `json:"fallback_random"`           // only chance keeps them apart from others
}

// Status reads memory only.
func (g *Generator) Status() Status {
	_, s := g.service.Status()
	info, health := g.issuer.Provider.Info(), g.issuer.State.Health()
	st := Status{
		Service: s.Service, Mode: s.Mode, Cause: s.Cause, Provider: info.URL, Scope: string(info.Scope), Promise: g.issuer.Promise(),
		StateDir: health.Dir, RetryInMS: s.RetryInMS, EpochMS: s.EpochMS, BitTS: s.BitTS, ExhaustedMS: s.ExhaustedMS,
		Throughput: s.Throughput, MaxThroughput: s.MaxThroughput, ClockSkewMS: s.ClockSkewMS, Issued: Issued(s.Issued),
	}
	if health.LiveErr == nil {
		st.LiveDir = health.Live
	}
	for _, l := range s.Leases {
		st.Leases = append(st.Leases, Lease(l))
	}
	return st
}
