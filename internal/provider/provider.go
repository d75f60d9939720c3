// Package provider says what grants leases: the interface, and the errors by which
// a caller decides what to do.
//
// # The grant rule
//
// In a pool, two grants with overlapping slots have disjoint intervals. Every coordinating
// provider keeps it like this:
//
//   - There is one record per (slot start, bit_seq), never deleted. A grant
//     replaces the record of the same slot only, and only when every record with an
//     overlapping slot has end <= now. Check and write are one atomic step.
//   - A grant sets end = expired + quarantine. A valid release sets
//     end = max(timestamp+1, created), and never a later end than before.
//   - Nothing trusts the clock: if it jumps ahead and back, slots look busy for
//     longer, and no record is lost.
//
// Package providertest is the suite that holds an implementation to this.
package provider

import (
	"context"
	"errors"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
)

// Provider grants and takes back leases. Implementations are safe for
// concurrent use and return soon after ctx is done.
//
// Every provider has Acquire, Release, Ready, Info and Close. The others fail with an error that
// is errors.ErrUnsupported where the provider lacks them; see Lacking.
type Provider interface {
	// Acquire grants leases of one service with a throughput that together reaches
	// req.ThroughputPerMS, or as many as it can, but at least one.
	//
	// Asked again with the same RequestID it returns the same leases as long
	// as they live; when one was released or has ended, ErrConflict.
	//
	// Errors: *FullError when no slot is free, *FencedError while a store that
	// may have forgotten grants is held back, ErrConflict, ErrInvalid for a
	// request that can never succeed. A part that was granted before a refusal
	// ends by itself. After anything else the grant may or may not have been
	// made, and the caller asks again with the same RequestID: later if it is a
	// *BusyError, and otherwise once the provider is available.
	Acquire(ctx context.Context, req AcquireRequest) ([]lease.Lease, error)

	// Release gives a lease back before it ends; its slot is then free after
	// req.TimestampMS. Releasing a released lease, with a valid signature, changes
	// nothing and is no error.
	//
	// The release is sent at most once: it is neither repeated nor sent to
	// another server once a byte of it has left this process.
	//
	// Errors: ErrNotFound when the slot was never granted, ErrBadSignature
	// when the lease is not the caller's (any more), ErrTimestampSkew when
	// the timestamp is further than ReleaseWindow from the provider's time and req.AtEnd
	// does not allow it.
	//
	// An error that wraps ErrNotSent means that the release was not sent.
	// ErrTimestampSkew, *FencedError, *BusyError and ErrInvalid are refusals by
	// the provider's own word: the lease is as it was. Anything else: it is not
	// known whether the lease was released.
	Release(ctx context.Context, req ReleaseRequest) error

	// Extend makes the lease last for one term from now, by the provider's
	// clock; it never shortens it. A lease that lasts longer than req.ExpiredMS
	// already stays as it is: the request is repeated, perhaps by an eavesdropper. Extend
	// returns the lease with its present times, and without its secret. Function Extend
	// extends a lease.
	//
	// It is there for programs that cannot take a new machine ID while they run
	// (seed 001); the keeper never extends (seed 000, A.1).
	//
	// Errors: ErrNotFound when the slot was never granted, ErrBadSignature when
	// the lease is not the caller's (any more), ErrConflict when it was released
	// or has expired, *FencedError while grants are held back. Anything else means that the lease may or may not have been
	// extended: the caller keeps to the end it knows.
	Extend(ctx context.Context, req ExtendRequest) (lease.Lease, error)

	// Verify returns the positions of the claims on leases that are no longer the
	// caller's: taken over, released, or forgotten by the store. A lease that merely
	// expired is not among them, nor is a forgotten one as long as the store is held back
	// from granting for that reason. Function Verify asks about leases.
	//
	// An error means that nothing is known.
	Verify(ctx context.Context, service string, claims []Claim) (lost []int, err error)

	// List returns one entry per slot that was ever granted, ordered by slot.
	List(ctx context.Context, service string) ([]Record, error)

	// Locate returns the grants of the service's pool with a slot that covers the low
	// bits and an interval [created, expired) that holds the time, the latest first, of the
	// last KeptGrants of each slot. A release before the time ends the interval there.
	// None is no error.
	Locate(ctx context.Context, service string, low, atMS int64) ([]Record, error)

	// Counters returns the counts of the service's pool since the store was new, by CounterNames;
	// a provider may have more of its own.
	Counters(ctx context.Context, service string) (map[string]int64, error)

	// Init declares that the store knows all held leases. A store that may forget must be
	// told so before its first use, or it waits until every grant that could have been
	// lost has ended. On a store that is in use and has lost nothing it changes nothing.
	Init(ctx context.Context, service string) error

	// Fence holds back grants as after a loss: for use after an operator has put back an
	// older state of the store in a way that it cannot notice. It returns until
	// when.
	Fence(ctx context.Context) (*FencedError, error)

	// Fenced is the refusal that an acquire would get now, as far as the last
	// operation has seen; nil where there is none. It does no I/O.
	Fenced() *FencedError

	// Ready asks the store, so that Fenced is up to date, and says why it cannot be reached now.
	// ErrInvalid: it was found not to grant on the terms.
	Ready(ctx context.Context) error

	// Info says what kind of promise the provider gives, and which methods it has.
	// It does no I/O.
	Info() Info

	// Close frees the provider's connections and files. Leases stay granted.
	Close() error
}

// ReleaseWindow is how far a release's timestamp may be from the provider's
// clock (seed 000, section 4.5).
const ReleaseWindow = 30 * time.Second

// AcquireRequest asks for leases.
type AcquireRequest struct {
	Service         string            // service name; the provider maps it to a pool
	Meta            map[string]string // the caller: host, pid, version, ...
	ThroughputPerMS int64             // IDs per millisecond still missing; values below 1 mean 1
	RequestID       string            // 128 random bits in hex; empty means the request is never repeated
	Client          Client            // for a provider that counts clients
}

// Client says which sort of client an acquire comes from.
type Client int

const (
	// OwnClient: this process's. The provider knows whether it is the first one.
	OwnClient Client = iota
	// KnownClient and NewClient: a lease server's client's. The server knows
	// whether it was counted before.
	KnownClient
	NewClient
)

// ReleaseRequest gives one lease back.
type ReleaseRequest struct {
	Service     string
	ID          int64  // machine ID
	BitSeq      int    // layout of the lease; AnyBitSeq when not known
	TimestampMS int64  // Unix ms; no ID made under the lease embeds a later one
	Signature   string // lease.Sign(secret, ID, TimestampMS)
	// AtEnd: TimestampMS is the lease's last millisecond, Expired-1, however far
	// ahead that is. The slot stays taken until Expired, without a quarantine.
	// For holders that do not know what their IDs embed.
	AtEnd bool
}

// AnyBitSeq in a ReleaseRequest means the record with the secret that verifies the signature.
const AnyBitSeq = -1

// Scope is how far a provider's promise of uniqueness reaches.
type Scope string

// The scopes, from the widest promise to none.
const (
	ScopeShared     Scope = "shared"     // every host that uses the same store
	ScopeHost       Scope = "host"       // the processes of this host
	ScopeUnverified Scope = "unverified" // no coordination: the operator's promise
	ScopeNone       Scope = "none"       // no provider: every ID is a fallback ID
)

// Info describes a provider to operators.
type Info struct {
	Name  string // the URL scheme, for example "sqlite"
	URL   string // where it is, without secrets
	Scope Scope
	// Coordinated is false for providers without records, which lack Verify, Extend, List and
	// Locate. What one of them grants, it grants to every caller: a single service may use it,
	// since nothing keeps two apart.
	Coordinated bool
	// Forgetful reports whether the store may lose a grant and grant the same
	// slot again while the first holder goes on. Until that holder verifies its
	// lease, two programs use the slot.
	Forgetful bool
}

// Lacking has the methods that the provider with this name lacks. A provider embeds it, and hides
// it with its own methods.
type Lacking string

func (l Lacking) lack(what string) error { return &lackError{string(l), what} }

// lackError: the provider cannot carry out the call. It is errors.ErrUnsupported.
type lackError struct{ provider, lacking string }

func (e *lackError) Error() string        { return "the provider " + e.provider + ": " + e.lacking }
func (e *lackError) Is(target error) bool { return target == errors.ErrUnsupported }

// Extend implements Provider.
func (l Lacking) Extend(context.Context, ExtendRequest) (lease.Lease, error) {
	return lease.Lease{}, l.lack("it cannot extend a lease")
}

// Verify implements Provider.
func (l Lacking) Verify(context.Context, string, []Claim) ([]int, error) {
	return nil, l.lack("it cannot tell whose a lease is")
}

// List implements Provider.
func (l Lacking) List(context.Context, string) ([]Record, error) {
	return nil, l.lack("it keeps no records")
}

// Locate implements Provider.
func (l Lacking) Locate(context.Context, string, int64, int64) ([]Record, error) {
	return nil, l.lack("it keeps no history")
}

// Counters implements Provider.
func (l Lacking) Counters(context.Context, string) (map[string]int64, error) {
	return nil, l.lack("it does not count")
}

// Init implements Provider.
func (l Lacking) Init(context.Context, string) error { return l.lack("it needs no declaration") }

// Fence implements Provider.
func (l Lacking) Fence(context.Context) (*FencedError, error) {
	return nil, l.lack("it is not fenced by hand")
}

// Fenced implements Provider.
func (Lacking) Fenced() *FencedError { return nil }

// Ready implements Provider, for a provider that reaches out to nothing, or has done so.
func (Lacking) Ready(context.Context) error { return nil }

// Claim says that a lease is the caller's, and proves it without the secret.
type Claim struct {
	ID        int64  // machine ID
	BitSeq    int    // layout of the lease
	CreatedMS int64  // the lease's beginning
	Signature string // lease.SignVerify(secret, ID, CreatedMS)
}

// Record is a provider's memory of a slot's latest grant. The JSON names are those of the
// objects of Kubernetes.
type Record struct {
	Lease    lease.Lease       `json:"lease"`             // without its secret
	Service  string            `json:"service,omitempty"` // the caller
	Meta     map[string]string `json:"meta,omitempty"`    // as given at the acquire
	End      int64             `json:"end"`               // Unix ms; from then on the slot can be granted again
	Released bool              `json:"released,omitempty"`
}

// ExtendRequest moves the end of a living lease.
type ExtendRequest struct {
	Service   string
	ID        int64  // machine ID
	BitSeq    int    // layout of the lease
	CreatedMS int64  // the lease's beginning
	ExpiredMS int64  // its end, as far as the caller knows
	Signature string // lease.SignExtend(secret, ID, CreatedMS, ExpiredMS)
}

// The names of counters in seed 001.
const (
	CountClients     = "client_id_count"            // processes that have asked for a machine ID
	CountAcquires    = "client_get_id_count"        // requests for one
	CountGranted     = "client_get_id_success"      // granted ones
	CountFull        = "get_id_no_available_id"     // calls that found the pool full
	CountExtends     = "extend_ttl_count"           // requests to extend a lease
	CountExtended    = "extend_ttl_success"         // granted ones
	CountNotOwner    = "extend_ttl_ownership_error" // calls for another holder's lease
	CountExtendEnded = "extend_ttl_expire_warning"  // calls for a lease that has ended
)

// CounterNames are the counters that every provider has which counts.
var CounterNames = []string{
	CountClients, CountAcquires, CountGranted, CountFull, CountExtends, CountExtended, CountNotOwner, CountExtendEnded,
}
