package etcd

import (
	"context"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
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

// count adds one to the number in a record, with the writes beside it.
func count(t *testing.T, s record.Store, term int64) (runs int, err error) {
	t.Helper()
	_, err = s.Change(testContext(t), record.Ask{Keys: []string{"n"}}, func(v record.View) ([]record.Write, error) {
		runs++
		return []record.Write{{Key: "n", Value: append(v.Records["n"].Value, 'I'), TermMS: term}}, nil
	})
	return runs, err
}

// The client repeats a transaction whose answer was lost. What the first one wrote is
// recognised by its version; where it was overwritten, the change does not succeed, and
// is not carried out twice.
func TestLostAnswer(t *testing.T) {
	for _, term := range []int64{0, 3_600_000} {
		for _, outrun := range []bool{false, true} {
			cfg := etcdtest.Shared(t)
			s, other := mustOpen(t, cfg), mustOpen(t, cfg)
			if _, err := count(t, s, term); err != nil {
				t.Fatal(err)
			}
			want := "II"
			lose(s, func() {
				if !outrun {
					return
				}
				if _, err := count(t, other, term); err != nil {
					t.Error(err)
				}
				want = "III"
			})
			if runs, err := count(t, s, term); errors.Is(err, record.ErrOutrun) != outrun || !outrun && err != nil || runs != 1 {
				t.Errorf("term %d, outrun %v: %d runs, %v", term, outrun, runs, err)
			}
			if got := value(t, other, "n"); got != want {
				t.Errorf("term %d, outrun %v: %s was counted, want %s", term, outrun, got, want)
			}
			// What is known of it now is right, or is not relied on.
			if _, err := count(t, s, term); err != nil || value(t, other, "n") != want+"I" {
				t.Errorf("term %d, outrun %v: then it is %s (%v)", term, outrun, value(t, other, "n"), err)
			}
		}
	}
}

// What was written may be gone again before the transaction is repeated.
func TestLostAnswerOfARecordThatIsGone(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		s := mustOpen(t, etcdtest.Shared(t))
		mustPut(t, s, record.Write{Key: "other", Value: []byte{}}) // learns the life
		if !fresh {
			if _, err := count(t, s, 3_600_000); err != nil {
				t.Fatal(err)
			}
		}
		lose(s, func() { expire(t, s, "n") })
		if runs, err := count(t, s, 3_600_000); !errors.Is(err, record.ErrOutrun) || runs != 1 {
			t.Errorf("fresh %v: %d runs, %v, want ErrOutrun", fresh, runs, err)
		}
		if _, err := count(t, s, 3_600_000); err != nil || value(t, s, "n") != "I" {
			t.Errorf("fresh %v: then it is %s (%v)", fresh, value(t, s, "n"), err)
		}
	}
}

// The same request as two calls has two versions: what the first one wrote is not taken
// for the second's, and a decision on the first does not pass for one on the second.
func TestVersionsDiffer(t *testing.T) {
	cfg := etcdtest.Shared(t)
	s := mustOpen(t, cfg)
	seen := map[string]bool{}
	for range 3 {
		mustPut(t, s, record.Write{Key: "k", Value: []byte("the same")})
		now, err := s.see(testContext(t), record.Ask{Keys: []string{"k"}})
		if err != nil || seen[now.records[0].Writer] {
			t.Fatalf("the version %q comes twice (%v)", now.records[0].Writer, err)
		}
		seen[now.records[0].Writer] = true
	}
}
