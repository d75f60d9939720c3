// Package recordhttp is how a store's lack of room travels from a lease server to its clients.
package recordhttp

import (
	"errors"
	"time"

	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/record"
)

// retry is when a client may ask again for a key that there is no room for: keys end with
// their terms, at the earliest.
const retry = time.Minute

// FromError is the problem by which a lack of room travels, nil for any other error.
func FromError(err error) *problem.Problem {
	full, ok := errors.AsType[*record.FullError](err)
	if !ok {
		return nil
	}
	p := problem.New(problem.Overloaded, "%v", full).After(retry)
	p.Quota, p.Payer, p.Limit, p.Unit = full.Quota, full.Payer, full.Limit, full.Unit
	return p
}

// ToError is the lack of room that the problem stands for, nil if it is another one: a server
// that has too much to do answers with the same code.
func ToError(p *problem.Problem) error {
	if p.Code != problem.Overloaded || p.Quota == "" {
		return nil
	}
	return &record.FullError{Quota: p.Quota, Payer: p.Payer, Limit: p.Limit, Unit: p.Unit}
}
