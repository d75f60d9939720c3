package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kazahana/kazahana/internal/etcdconn/etcdtest"
	"github.com/kazahana/kazahana/internal/sequence"
)

// forgetful loses the answer of one transaction, once it was carried out.
type forgetful struct {
	clientv3.KV
	then func() // what happens before the client asks again
}

func (l *forgetful) Txn(ctx context.Context) clientv3.Txn { return &forgetfulTxn{l.KV.Txn(ctx), l} }

type forgetfulTxn struct {
	clientv3.Txn
	way *forgetful
}

func (t *forgetfulTxn) If(c ...clientv3.Cmp) clientv3.Txn  { t.Txn = t.Txn.If(c...); return t }
func (t *forgetfulTxn) Then(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(o...); return t }
func (t *forgetfulTxn) Else(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(o...); return t }

func (t *forgetfulTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.Txn.Commit()
	then := t.way.then
	if err != nil || then == nil {
		return resp, err
	}
	t.way.then = nil
	then()
	return nil, status.Error(codes.Unavailable, "transport is closing")
}

// lose has the store lose its next answer.
func lose(s owned, then func()) { s.conn.KV.KV = &forgetful{KV: s.conn.KV.KV, then: then} }

// The client repeats a transaction whose answer was lost by itself. What the first
// try took is what the call returns: there is no gap, and where nobody can tell
// what it took, the call does not succeed.
func TestLostAnswerLeavesNoGap(t *testing.T) {
	for _, ttl := range []time.Duration{0, time.Hour} {
		for _, requestID := range []string{"", "named"} {
			for _, outrun := range []bool{false, true} {
				t.Run(fmt.Sprint(ttl, requestID, outrun), func(t *testing.T) {
					cfg := etcdtest.Shared(t)
					s, other := mustOpen(t, cfg), mustOpen(t, cfg)
					o := sequence.DefaultOptions()
					o.TTL = ttl
					take(t, s, o, 1)
					next := int64(4)
					lose(s, func() {
						if outrun {
							take(t, other, o, 4)
							next = 5
						}
					})
					got, err := s.Next(testContext(t), sequence.Request{Tenant: "default", Key: "k", Count: 2, RequestID: requestID, Options: o})
					if outrun && requestID == "" {
						if !errors.Is(err, errOutrun) || sequence.IsAnswer(err) {
							t.Errorf("%v (%v), want errOutrun", got, err)
						}
					} else if err != nil || got.First != 2 || got.Count != 2 {
						t.Errorf("%v (%v), want 2 and 3, which the first try took", got, err)
					}
					take(t, s, o, next)
					take(t, other, o, next+1)
				})
			}
		}
	}
}

// What was taken may have been forgotten with its key before the call is repeated.
func TestLostAnswerOfAKeyThatIsGone(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		s := mustOpen(t, etcdtest.Shared(t))
		o := sequence.DefaultOptions()
		o.TTL = time.Hour
		if !fresh {
			take(t, s, o, 1)
		}
		lose(s, func() {
			if _, err := s.conn.KV.Revoke(testContext(t), leaseOf(t, s, "k")); err != nil {
				t.Error(err)
			}
		})
		got, err := s.Next(testContext(t), sequence.Request{Tenant: "default", Key: "k", Count: 1, Options: o})
		if !errors.Is(err, errOutrun) || sequence.IsAnswer(err) {
			t.Errorf("fresh %v: %v (%v), want errOutrun", fresh, got, err)
		}
		take(t, s, o, 1)
	}
}

// A declaration that is repeated does not take back what was handed out since.
func TestLostAnswerOfADeclaration(t *testing.T) {
	for _, outrun := range []bool{false, true} {
		cfg := etcdtest.Shared(t)
		s, other := mustOpen(t, cfg), mustOpen(t, cfg)
		o := sequence.DefaultOptions()
		take(t, s, o, 1)
		next := int64(42)
		lose(s, func() {
			if outrun {
				take(t, other, o, 42)
				next = 43
			}
		})
		err := s.Declare(testContext(t), sequence.Declaration{Tenant: "default", Key: "k", Options: o, Last: 41})
		if errors.Is(err, errOutrun) != outrun || !outrun && err != nil {
			t.Errorf("outrun %v: %v", outrun, err)
		}
		take(t, other, o, next)
	}
}
