package leaseapi

import (
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// Paths of the API, below the server's URL.
const (
	PathLease   = "/lease"         // POST acquires; DELETE PathLease/{id} releases
	PathLeases  = "/leases"        // GET lists
	PathVerify  = "/leases/verify" // POST
	PathExtend  = "/leases/extend" // POST
	PathHistory = "/leases/at"     // GET: who held the low bits at the time
	PathStats   = "/stats"         // GET
)

// Names of query parameters.
const (
	ParamService   = "serviceId"
	ParamSignature = "signature"
	ParamTimestamp = "timestamp"
	ParamBitSeq    = "bitSeq"
	ParamAtEnd     = "atEnd"
	ParamLow       = "low"
	ParamAt        = "at"
)

// MaxRequestBytes limits a request's body: the largest meta that a provider stores, with
// every byte escaped as six.
const MaxRequestBytes = 6*provider.MaxMetaBytes + 16*1024

// MaxVerify is how many leases one request may verify. A host with more leases sends
// several requests.
const MaxVerify = 256

// ContentType is the media type of answers.
const ContentType = "application/json"

// AcquireRequest is the body of POST /lease.
type AcquireRequest struct {
	ServiceID       string            `json:"serviceId,omitempty"`
	Meta            map[string]string `json:"meta,omitempty"`
	ThroughputPerMS *int64            `json:"throughputPerMs,omitempty"` // nil: one lease
	RequestID       string            `json:"requestId,omitempty"`
	// NewClient is true in the first request of a client process, and false in the
	// others; nil if the client does not say.
	NewClient *bool `json:"newClient,omitempty"`
}

// AcquireResponse is the answer to an AcquireRequest.
type AcquireResponse struct {
	RequestID string        `json:"requestId,omitempty"` // the request's
	Leases    []lease.Lease `json:"leases"`
	Forgetful bool          `json:"forgetful,omitempty"` // provider.Info.Forgetful, of the server's store
}

// Granted is AcquireResponse as a client reads it: a server of another make may leave
// out the newer fields.
type Granted struct {
	RequestID string         `json:"requestId"` // "" of a server that does not repeat it
	Leases    []GrantedLease `json:"leases"`
	Forgetful bool           `json:"forgetful"`
}

// GrantedLease is a lease that may lack ReservedUntil. Then it is only known that no other holder
// comes before Expired.
type GrantedLease struct {
	lease.Lease
	ReservedUntil *int64 `json:"reservedUntil"`
}

// ReleaseRequest is the body of DELETE /lease/{id}, or its query.
type ReleaseRequest struct {
	ID        *int64 `json:"id,omitempty"` // the {id} of the path again
	Signature string `json:"signature"`
	Timestamp *int64 `json:"timestamp"` // Unix ms
	ServiceID string `json:"serviceId,omitempty"`
	BitSeq    *int   `json:"bitSeq,omitempty"` // nil: the record with the secret that verifies
	AtEnd     bool   `json:"atEnd,omitempty"`  // Timestamp is the lease's last millisecond, however far ahead
}

// Claim names a lease, and proves by a signature that it is the caller's.
type Claim struct {
	ID        *int64 `json:"id"`
	BitSeq    *int   `json:"bitSeq"`
	Created   *int64 `json:"created"` // Unix ms
	Signature string `json:"signature"`
}

// ExtendRequest is the body of POST /leases/extend. The signature is lease.SignExtend's.
type ExtendRequest struct {
	Claim
	Expired   *int64 `json:"expired"` // Unix ms: the end that the caller knows
	ServiceID string `json:"serviceId,omitempty"`
}

// ExtendResponse is the answer to an ExtendRequest: the lease without its secret.
type ExtendResponse struct {
	Lease lease.Lease `json:"lease"`
}

// VerifyRequest is the body of POST /leases/verify. The signatures are those of
// lease.SignVerify.
type VerifyRequest struct {
	ServiceID string  `json:"serviceId,omitempty"`
	Leases    []Claim `json:"leases"`
}

// VerifyResponse is the answer to a VerifyRequest: the positions of the leases that are
// no longer the caller's.
type VerifyResponse struct {
	Lost []int `json:"lost"`
}

// RecordsResponse is the answer to GET /leases and GET /leases/at.
type RecordsResponse struct {
	Records []Record `json:"records"`
}

// Record is a provider's record of a grant.
type Record struct {
	ID            int64             `json:"id"`
	Created       int64             `json:"created"`
	Expired       int64             `json:"expired"`
	ReservedUntil int64             `json:"reservedUntil"`
	EpochMS       int64             `json:"customEpoch"`
	BitReserve    int               `json:"bitReserve"`
	BitTS         int               `json:"bitTs"`
	BitID         int               `json:"bitId"`
	BitSeq        int               `json:"bitSeq"`
	ServiceID     string            `json:"serviceId"`
	Meta          map[string]string `json:"meta"`
	End           int64             `json:"end"` // Unix ms; from then on the slot can be granted again
	Released      bool              `json:"released"`
}

// FromRecord converts the record, without any secret.
func FromRecord(r provider.Record) Record {
	l := r.Lease
	return Record{
		ID: l.ID, Created: l.Created, Expired: l.Expired, ReservedUntil: l.ReservedUntil,
		EpochMS: l.EpochMS, BitReserve: l.BitReserve, BitTS: l.BitTS, BitID: l.BitID, BitSeq: l.BitSeq,
		ServiceID: r.Service, Meta: r.Meta, End: r.End, Released: r.Released,
	}
}

// Record converts the record for package provider.
func (r Record) Record() provider.Record {
	return provider.Record{
		Lease: lease.Lease{
			ID: r.ID, Created: r.Created, Expired: r.Expired, ReservedUntil: r.ReservedUntil,
			EpochMS: r.EpochMS, BitReserve: r.BitReserve, BitTS: r.BitTS, BitID: r.BitID, BitSeq: r.BitSeq,
		},
		Service: r.ServiceID, Meta: r.Meta, End: r.End, Released: r.Released,
	}
}

// Stats is the answer to GET /stats: one JSON object of numbers. Those in StatsGauges are
// the pool's state now, all others are counters.
type Stats map[string]int64

// StatsGauges are the members of Stats that describe the state of the service's pool.
// TTLs are in seconds; quarantined_ids counts the part of unusing_ids that cannot be
// granted yet.
var StatsGauges = []string{
	"unusing_ids", "using_ids", "using_ttl_max", "using_ttl_mid", "using_ttl_min", "quarantined_ids",
}
