// Package http is sequences over HTTP: the messages of the lease server's sequence
// service, and the Store that asks such a server.
//
// The client's credential sets the tenant, and a tenant that a Request names does not
// count. A request without a request ID is sent once; a request with one may be sent
// again, to the next server too: see package httpconn.
package http

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/record/recordhttp"
	"github.com/kazahana/kazahana/internal/sequence"
)

// Path is the path of the sequences, below the server's URL: POST Path/{key}/next, and POST
// Path/{key}/declare.
const Path = "/v1/sequences"

// ParamKey is the key of the path again, in the query.
const ParamKey = "key"

// Request is the body of a next. All members are optional.
type Request struct {
	Key       string `json:"key,omitempty"`      // the key of the path again: the server refuses another one
	Count     *int   `json:"count,omitempty"`    // default 1
	AtLeast   int    `json:"at_least,omitempty"` // how many will do where count do not fit before the maximum; default count
	RequestID string `json:"request_id,omitempty"`
	Counting
}

// Declaration is the body of a declare.
type Declaration struct {
	Key  string `json:"key,omitempty"` // as in Request
	Last *int64 `json:"last"`
	Counting
}

// Declared is the answer to a declare.
type Declared struct {
	Key  string `json:"key"`
	Last int64  `json:"last"`
}

// Counting is how a key counts: set by the server's configuration for keys that it
// names, else here; what the key was made with decides.
type Counting struct {
	Step     *int64  `json:"step,omitempty"`
	Start    *int64  `json:"start,omitempty"`
	MaxValue *int64  `json:"max_value,omitempty"` // 0 = none
	OnMax    *string `json:"on_max,omitempty"`
	TTLMS    *int64  `json:"ttl_ms,omitempty"` // 0 = for ever
}

// Options are the given ones with what the request says in their place.
func (r Counting) Options(o sequence.Options) (sequence.Options, error) {
	if r.Step != nil {
		o.Step = *r.Step
	}
	if r.Start != nil {
		o.Start, o.StartSet = *r.Start, true
	}
	if r.MaxValue != nil {
		o.Max = *r.MaxValue
	}
	if r.OnMax != nil {
		o.OnMax = sequence.OnMax(*r.OnMax)
	}
	if r.TTLMS != nil {
		if *r.TTLMS < 0 || *r.TTLMS > sequence.MaxTTL.Milliseconds() {
			return o, fmt.Errorf("%w: ttl_ms of %d is not 0 to %d", sequence.ErrInvalid, *r.TTLMS, sequence.MaxTTL.Milliseconds())
		}
		o.TTL = time.Duration(*r.TTLMS) * time.Millisecond
	}
	return o, nil
}

// Answer is values one step apart.
type Answer struct {
	Key    string  `json:"key"`
	First  int64   `json:"first"`
	Last   int64   `json:"last"`
	Step   int64   `json:"step"`
	Values []int64 `json:"values"`
}

// FromRange is the answer.
func FromRange(key string, r sequence.Range) Answer {
	return Answer{Key: key, First: r.First, Last: r.Last(), Step: r.Step, Values: r.Values()}
}

const (
	// maxAnswer bounds an answer: so many values of 19 digits, and a key of which
	// every byte is escaped as six.
	maxAnswer = sequence.MaxCount*20 + 6*sequence.MaxKey + 1024
	// operatorRetry is when to come back to a sequence that waits for an operator.
	operatorRetry = time.Minute
)

// FromError is the problem by which a store's refusal travels, nil for any other
// error.
func FromError(err error, nowMS int64) *problem.Problem {
	var exhausted *sequence.ExhaustedError
	var fenced *sequence.FencedError
	var mismatch *sequence.MismatchError
	switch {
	case errors.As(err, &exhausted):
		p := problem.New(problem.SequenceUsedUp, "%v", exhausted)
		p.MaxValue, p.Left = exhausted.Max, &exhausted.Left
		return p
	case errors.As(err, &fenced):
		p := problem.New(problem.SequenceFenced, "%v", fenced).After(operatorRetry)
		if fenced.UntilMS > 0 {
			p.After(problem.Until(fenced.UntilMS, nowMS))
		}
		p.UntilMS, p.Reason = fenced.UntilMS, fenced.Reason
		return p
	case errors.Is(err, sequence.ErrRequestReused):
		return problem.New(problem.RequestIDReused, "%v", err)
	case errors.Is(err, sequence.ErrInvalid):
		p := problem.New(problem.InvalidRequest, "%s", strings.TrimPrefix(err.Error(), sequence.ErrInvalid.Error()+": "))
		if errors.As(err, &mismatch) {
			p.Recorded, p.Asked = mismatch.Recorded, mismatch.Asked
		}
		return p
	}
	return nil
}

// toError is the refusal that the problem stands for. nil means that no store has judged
// the request.
func toError(key string, p *problem.Problem) error {
	switch p.Code {
	case problem.SequenceUsedUp:
		e := &sequence.ExhaustedError{Key: key, Max: p.MaxValue}
		if p.Left != nil {
			e.Left = *p.Left
		}
		return e
	case problem.SequenceFenced:
		return &sequence.FencedError{Key: key, UntilMS: p.UntilMS, Reason: p.Reason}
	case problem.RequestIDReused:
		return sequence.ErrRequestReused
	case problem.InvalidRequest:
		if p.Recorded != "" {
			return &sequence.MismatchError{Key: key, Recorded: p.Recorded, Asked: p.Asked}
		}
		return fmt.Errorf("%w: %s", sequence.ErrInvalid, p.Detail)
	}
	return nil
}

// Store is sequences on a lease server.
type Store struct{ client *httpconn.Client }

var _ sequence.Store = (*Store)(nil)

// New uses a client, which its maker closes.
func New(client *httpconn.Client) *Store { return &Store{client} }

// Next implements sequence.Store.
func (s *Store) Next(ctx context.Context, r sequence.Request) (sequence.Range, error) {
	if err := r.Validate(); err != nil {
		return sequence.Range{}, err
	}
	var answer Answer
	err := s.client.Do(ctx, httpconn.Call{
		Method: "POST", Path: Path + "/" + httpconn.Escape(r.Key) + "/next", Answer: &answer, Limit: maxAnswer, Once: r.RequestID == "",
		Body: Request{
			Key: r.Key, Count: &r.Count, AtLeast: r.AtLeast, RequestID: r.RequestID, Counting: counting(r.Options),
		},
	})
	if err != nil {
		return sequence.Range{}, refusal(r.Key, err)
	}
	if answer.Key != r.Key {
		return sequence.Range{}, recordhttp.ForOther(r.Key, answer.Key, ", whose values are lost")
	}
	got := sequence.Range{First: answer.First, Step: answer.Step, Count: len(answer.Values)}
	if got.Count < r.Least() || got.Count > r.Count || got.Step != r.Options.Step || got.Last() != answer.Last {
		return sequence.Range{}, fmt.Errorf("the server answered with %d values from %d to %d, %d apart, when asked for %d", got.Count, got.First, answer.Last, got.Step, r.Count)
	}
	return got, nil
}

// Declare implements sequence.Store, for the tenant of the credential, which needs
// the scope admin.
func (s *Store) Declare(ctx context.Context, d sequence.Declaration) error {
	if err := d.Validate(); err != nil {
		return err
	}
	var answer Declared
	err := s.client.Do(ctx, httpconn.Call{
		Method: "POST", Path: Path + "/" + httpconn.Escape(d.Key) + "/declare", Answer: &answer, Limit: maxAnswer,
		Body: Declaration{Key: d.Key, Last: &d.Last, Counting: counting(d.Options)}, Once: true, // values may have been taken since
	})
	if err == nil && answer.Key != d.Key {
		return recordhttp.ForOther(d.Key, answer.Key, ", which goes on as declared now")
	}
	return refusal(d.Key, err)
}

func counting(o sequence.Options) Counting {
	first, onMax, ttl := o.First(), string(o.OnMax), o.TTL.Milliseconds()
	return Counting{Step: &o.Step, Start: &first, MaxValue: &o.Max, OnMax: &onMax, TTLMS: &ttl}
}

// refusal is the error of a call, as package sequence has it where it does.
func refusal(key string, err error) error {
	return recordhttp.Refused(err, func(p *problem.Problem) error { return toError(key, p) })
}
