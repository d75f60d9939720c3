package main

import (
	"github.com/kazahana/kazahana/internal/provider"
)

// leasesReport is what leases --json prints. null stands for a number that the
// provider does not know.
type leasesReport struct {
	Provider string `json:"provider"`
	Scope    string `json:"scope"`
	Service  string `json:"service"`

	ClientIDCount           *int64 `json:"client_id_count"`
	ClientGetIDCount        *int64 `json:"client_get_id_count"`
	ClientGetIDSuccess      *int64 `json:"client_get_id_success"`
	GetIDNoAvailableID      *int64 `json:"get_id_no_available_id"`
	ExtendTTLCount          *int64 `json:"extend_ttl_count"`
	ExtendTTLSuccess        *int64 `json:"extend_ttl_success"`
	ExtendTTLOwnershipError *int64 `json:"extend_ttl_ownership_error"`
	ExtendTTLExpireWarning  *int64 `json:"extend_ttl_expire_warning"`
	UnusingIDs              *int64 `json:"unusing_ids"`
	UsingIDs                int64  `json:"using_ids"`
	QuarantinedIDs          int64  `json:"quarantined_ids"`
	Fullness                string `json:"fullness"` // "" where unusing_ids is null
	UsingTTLMax             int64  `json:"using_ttl_max"`
	UsingTTLMid             int64  `json:"using_ttl_mid"`
	UsingTTLMin             int64  `json:"using_ttl_min"`

	OtherCounts map[string]int64 `json:"other_counts,omitempty"`
	Leases      []leaseLine      `json:"leases"`
}

// counted returns the fields that only a provider can count, by name.
func (r *leasesReport) counted() map[string]**int64 {
	return map[string]**int64{
		"client_id_count": &r.ClientIDCount, "client_get_id_count": &r.ClientGetIDCount,
		"client_get_id_success": &r.ClientGetIDSuccess, "get_id_no_available_id": &r.GetIDNoAvailableID,
		"extend_ttl_count": &r.ExtendTTLCount, "extend_ttl_success": &r.ExtendTTLSuccess,
		"extend_ttl_ownership_error": &r.ExtendTTLOwnershipError, "extend_ttl_expire_warning": &r.ExtendTTLExpireWarning,
	}
}

// addCounts fills in the provider's counters.
func (r *leasesReport) addCounts(counts map[string]int64) {
	fields := r.counted()
	for name, n := range counts {
		if field, ok := fields[name]; ok {
			*field = &n
			continue
		}
		if r.OtherCounts == nil {
			r.OtherCounts = map[string]int64{}
		}
		r.OtherCounts[name] = n
	}
}

// addUsage fills in the numbers that follow from the pool's records, and the number
// of free machine IDs if it is known.
func (r *leasesReport) addUsage(u provider.Usage, free bool) {
	if free {
		r.UnusingIDs, r.Fullness = &u.Free, string(u.Fullness())
	}
	r.UsingIDs, r.QuarantinedIDs = u.Held, u.Quarantined()
	r.UsingTTLMin, r.UsingTTLMid, r.UsingTTLMax = u.TTLMin, u.TTLMid, u.TTLMax
}

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

// leaseLine is a record as the command shows it.
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
