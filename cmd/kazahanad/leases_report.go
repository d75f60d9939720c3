package main

import (
	"github.com/kazahana/kazahana/internal/provider"
)

// The states of a record.
const (
	stateHeld        = "held"
	stateQuarantined = "quarantined" // ended, not handed back, and not granted again yet
	stateReleased    = "released"
	stateEnded       = "ended"
)

func stateOf(r provider.Record, nowMS int64) string {
	switch {
	case r.Released:
		return stateReleased
	case nowMS < r.Lease.Expired:
		return stateHeld
	case nowMS < r.End:
		return stateQuarantined
	}
	return stateEnded
}

// leaseLine is a record as leases and inspect show it.
type leaseLine struct {
	MachineID int64             `json:"machine_id"`
	BitTS     int               `json:"bit_ts"`
	BitID     int               `json:"bit_id"`
	BitSeq    int               `json:"bit_seq"`
	Host      string            `json:"host"`
	PID       string            `json:"pid"`
	Service   string            `json:"service"`
	CreatedMS int64             `json:"created_ms"`
	ExpiredMS int64             `json:"expired_ms"`
	FreeAtMS  int64             `json:"free_at_ms"`
	Released  bool              `json:"released"`
	State     string            `json:"state"`
	EndsInMS  int64             `json:"ends_in_ms"` // 0 unless held
	Meta      map[string]string `json:"meta"`
}

func lineOf(r provider.Record, nowMS int64) leaseLine {
	line := leaseLine{
		MachineID: r.Lease.ID, BitTS: r.Lease.BitTS, BitID: r.Lease.BitID, BitSeq: r.Lease.BitSeq,
		Host: r.Meta["host"], PID: r.Meta["pid"], Service: r.Service,
		CreatedMS: r.Lease.Created, ExpiredMS: r.Lease.Expired, FreeAtMS: r.End, Released: r.Released,
		State: stateOf(r, nowMS), Meta: r.Meta,
	}
	if line.State == stateHeld {
		line.EndsInMS = r.Lease.Expired - nowMS
	}
	return line
}
