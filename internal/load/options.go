package load

import "time"

// Options describe one measurement of one server.
type Options struct {
	Socket      string
	Dialect     string
	Count       int    // IDs per request
	Service     string // with RPC: the service; "" for the daemon's default
	Connections int
	Depth       int // requests sent together on a connection
	Warmup      time.Duration
	Duration    time.Duration
	Timeout     time.Duration // how long the server may take to answer; 0: for ever
	Began       func() error  `json:"-"` // optional: called when counting begins
}

// Result is the result of a measurement.
type Result struct {
	Requests int64         `json:"requests"`
	Elapsed  time.Duration `json:"elapsed_ns"`
	// The time from sending a group of requests to the last of their answers.
	P50  time.Duration `json:"p50_ns"`
	P90  time.Duration `json:"p90_ns"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
	Max  time.Duration `json:"max_ns"`
}

// Rate is answers per second.
func (r Result) Rate() float64 { return float64(r.Requests) / r.Elapsed.Seconds() }
