// Package http is activation records over HTTP: the messages of the lease server's
// placement service, and the Storage that asks such a server.
//
// The client's credential sets the tenant, and a tenant that a caller names does not
// count. To store and to remove may be repeated, so that a call with a lost answer is
// sent again, to the next server too: see package httpconn.
package http

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/record/recordhttp"
)

// Path is the path of the records, below the server's URL: GET Path/{kind}/{identity}, POST
// Path/{kind}/{identity}/store, and POST Path/{kind}/{identity}/remove.
const Path = "/v1/placements"

// Query parameters of a GET: kind and identity of the path again.
const (
	ParamKind     = "kind"
	ParamIdentity = "identity"
)

// Record is a record as it travels, in requests and in the answer to a GET.
type Record struct {
	Owner      string `json:"owner"` // "": none
	Membership int64  `json:"membership"`
	PID        string `json:"pid"`
	Version    int64  `json:"version"` // 0: there is none
	Token      int64  `json:"token"`
	Snapshot   []byte `json:"snapshot,omitempty"`    // base64
	ObservedMS int64  `json:"observed_ms,omitempty"` // Unix ms
}

// Removal is the body of a remove, and of a store, which has no Keep.
type Removal struct {
	Kind     string `json:"kind,omitempty"` // of the path again: the server refuses another one
	Identity string `json:"identity,omitempty"`
	Record
	Keep bool `json:"keep,omitempty"` // the stored snapshot stays
}

// Loaded is the answer to a GET.
type Loaded struct {
	Kind     string `json:"kind"`
	Identity string `json:"identity"`
	Record
}

// Done is the answer to a store and a remove, with the asked record.
type Done struct {
	Kind     string `json:"kind"`
	Identity string `json:"identity"`
	Version  int64  `json:"version"`
	Token    int64  `json:"token"`
}

// maxAnswer bounds an answer: the largest record, with every byte of its texts
// escaped as six.
const maxAnswer = (placement.MaxSnapshot+2)/3*4 + 6*(placement.MaxKind+placement.MaxIdentity+placement.MaxAuthority+placement.MaxPID) + 1024

// FromRecord is the record as it travels.
func FromRecord(r placement.Record) Record {
	return Record{r.Owner.Authority, r.Owner.Token, r.PID, r.Version, r.Token, r.Snapshot, r.ObservedMS}
}

// Placement is the record that travelled.
func (r Record) Placement() placement.Record {
	return placement.Record{Owner: placement.Member{Authority: r.Owner, Token: r.Membership}, PID: r.PID, Version: r.Version, Token: r.Token, Snapshot: r.Snapshot, ObservedMS: r.ObservedMS}
}

// FromError is the problem by which a storage's refusal travels, nil for any other
// error.
func FromError(err error) *problem.Problem {
	for code, refusal := range refusals {
		if errors.Is(err, refusal) {
			return problem.New(code, "%s", strings.TrimPrefix(err.Error(), placement.ErrInvalid.Error()+": "))
		}
	}
	return nil
}

var refusals = map[problem.Code]error{
	problem.PlacementStale: placement.ErrStale,
	problem.InvalidRequest: placement.ErrInvalid,
}

// refusal is the error of a call, as package placement has it where it does.
func refusal(err error) error {
	return recordhttp.Refused(err, func(p *problem.Problem) error {
		if full := recordhttp.ToError(p); full != nil {
			return fmt.Errorf("%w: %w", placement.ErrNoRoom, full)
		}
		if refused := refusals[p.Code]; refused != nil {
			return fmt.Errorf("%w: %s", refused, strings.TrimPrefix(p.Detail, refused.Error()+": "))
		}
		return nil
	})
}

type store struct{ client *httpconn.Client }

// New uses a client, which the caller closes.
func New(client *httpconn.Client) storage.Storage { return &store{client} }

func pathOf(key placement.Key) string {
	return Path + "/" + httpconn.Escape(key.Kind) + "/" + httpconn.Escape(key.Identity)
}

// Load implements storage.Storage.
func (s *store) Load(ctx context.Context, _ string, key placement.Key) (placement.Record, error) {
	if err := key.Validate(); err != nil {
		return placement.Record{}, err
	}
	var answer Loaded
	if err := s.client.Do(ctx, httpconn.Call{Method: "GET", Path: pathOf(key), Query: url.Values{ParamKind: {key.Kind}, ParamIdentity: {key.Identity}}, Answer: &answer, Limit: maxAnswer}); err != nil {
		return placement.Record{}, refusal(err)
	}
	if err := isOf(key, answer.Kind, answer.Identity); err != nil {
		return placement.Record{}, err
	}
	r := answer.Placement()
	if r.Version < 0 || r.Token < 0 || r.Owner.Authority != "" && r.Validate() != nil {
		return placement.Record{}, fmt.Errorf("the server answered with version %d and token %d of %q, which is no record", r.Version, r.Token, r.Owner.Authority)
	}
	return r, nil
}

// Store implements storage.Storage.
func (s *store) Store(ctx context.Context, _ string, key placement.Key, r placement.Record) error {
	return s.change(ctx, key, r, "/store", Removal{key.Kind, key.Identity, FromRecord(r), false})
}

// Remove implements storage.Storage.
func (s *store) Remove(ctx context.Context, _ string, key placement.Key, r placement.Record, keep bool) error {
	return s.change(ctx, key, r, "/remove", Removal{key.Kind, key.Identity, FromRecord(r), keep})
}

func (s *store) change(ctx context.Context, key placement.Key, r placement.Record, operation string, body any) error {
	if err := errors.Join(key.Validate(), r.Validate()); err != nil {
		return err
	}
	var answer Done
	if err := s.client.Do(ctx, httpconn.Call{Method: "POST", Path: pathOf(key) + operation, Body: body, Answer: &answer, Limit: maxAnswer}); err != nil {
		return refusal(err)
	}
	if err := isOf(key, answer.Kind, answer.Identity); err != nil {
		return err
	}
	if answer.Version != r.Version || answer.Token != r.Token {
		return fmt.Errorf("the server answered for version %d with token %d, when asked about %d with %d", answer.Version, answer.Token, r.Version, r.Token)
	}
	return nil
}

// isOf checks which actor an answer is about.
func isOf(key placement.Key, kind, identity string) error {
	if got := (placement.Key{Kind: kind, Identity: identity}); got != key {
		return recordhttp.ForOther(key.String(), got.String(), "")
	}
	return nil
}
