package lock

import (
	"context"
	"errors"
	"slices"

	"github.com/kazahana/kazahana/internal/record"
)

// Store keeps the locks. Implementations are safe for concurrent use and return
// soon after ctx is done, as a record.Store does. Package locktest is the suite that holds one to this.
type Store interface {
	// Do carries out one request, atomically per key, and answers when the result
	// is as durable as the store ever makes it. Its own clock decides which leases have
	// expired.
	//
	// Errors: *HeldError (acquire), *FencedError (acquire, on a store that may
	// have forgotten), *record.FullError (acquire of a key that is not known), ErrNotOwned and ErrExpired (renew, release),
	// ErrRequestReused, ErrInvalid: nothing was changed. Anything
	// else means that the store is unavailable, and that the request may or may
	// not have been carried out, or may yet be: the caller asks again with the
	// same RequestID.
	Do(ctx context.Context, r Request) (Lease, error)

	// Get returns the key's latest lease, alive or not.
	//
	// Errors: ErrNotFound when the store knows nothing of the key, perhaps because it
	// has been idle for long; ErrInvalid.
	Get(ctx context.Context, tenant, key string) (Lease, error)

	// List returns live leases of a tenant in the order of their keys' bytes,
	// beginning after the key named, "" for the first page. A page shorter than
	// limit, which is 1 to MaxList, is the last. Leases that come and go meanwhile
	// may be shown or not; each is shown at most once.
	List(ctx context.Context, tenant, after string, limit int) ([]Lease, error)

	// Waits reports whether the store waits for a lock by itself: the *HeldError of an acquire
	// comes after Request.Wait, and no sooner.
	Waits() bool

	// Notify returns a channel that gets a token when a lease of the key is released
	// after Notify has returned, by any client; it may get one at other times. One token
	// may stand for several. The channel is closed when ctx is done, or when the store
	// goes blind. The error is errors.ErrUnsupported where it always is.
	Notify(ctx context.Context, tenant, key string) (<-chan struct{}, error)

	// Changes is Notify for all keys with the prefix, which ends in a slash; a lease that
	// was announced (Request.Announce) gives a token when it is granted, too.
	Changes(ctx context.Context, tenant, prefix string) (<-chan struct{}, error)
}

// MaxList is the most leases of one page.
const MaxList = 1000

// IsAnswer reports whether an error of a Store is its answer to the request.
// Anything else leaves open whether the request was carried out.
func IsAnswer(err error) bool {
	if err == nil { // without a look at all of them
		return true
	}
	var held *HeldError
	var fenced *FencedError
	var full *record.FullError
	if errors.As(err, &held) || errors.As(err, &fenced) || errors.As(err, &full) {
		return true
	}
	return slices.ContainsFunc(refusals, func(known error) bool { return errors.Is(err, known) })
}

var refusals = []error{ErrNotOwned, ErrExpired, ErrRequestReused, ErrNotFound, ErrInvalid}
