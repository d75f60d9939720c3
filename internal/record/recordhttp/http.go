// Package recordhttp is shared by the clients of a lease server: how refusals and a store's lack
// of room travel to them, and that something in between changes their requests.
package recordhttp

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
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
	p := problem.New(problem.StoreFull, "%v", full).After(retry)
	p.Setting, p.Limit, p.Payer = full.Setting, full.Limit, full.Payer
	return p
}

// ToError is the lack of room that the problem stands for, nil if it is another one.
func ToError(p *problem.Problem) error {
	if p.Code != problem.StoreFull {
		return nil
	}
	return &record.FullError{Setting: p.Setting, Limit: p.Limit, Payer: p.Payer}
}

// Refused is the error of a call: for a settled refusal what toError makes of it. That returns nil
// for a problem that stands for no judgement of the store.
func Refused(err error, toError func(*problem.Problem) error) error {
	if p := httpconn.Settled(err); p != nil {
		if refusal := cmp.Or(toError(p), ToError(p)); refusal != nil {
			return refusal
		}
	}
	if is, unsure := httpconn.Stray(err); is {
		return &record.StrayError{Err: err, Unsure: unsure}
	}
	return err
}

// ForOther is the error of an answer for another key than the request's. done says what became of
// that key.
func ForOther(asked, answered, done string) error {
	return &record.StrayError{Err: fmt.Errorf("the server answered for the key %q when asked for %q%s: "+
		"a proxy changes the path (%%2F), or mixes answers up; docs/providers/http.md, behind a proxy, has the settings", answered, asked, done)}
}
