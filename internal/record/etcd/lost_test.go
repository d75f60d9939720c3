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

// forgetful loses the answer of one transaction that compares, once it was carried out.
type forgetful struct {
	clientv3.KV
	then func() // what happens before the client asks again
}

func (l *forgetful) Txn(ctx context.Context) clientv3.Txn {
	return &forgetfulTxn{Txn: l.KV.Txn(ctx), way: l}
}

type forgetfulTxn struct {
	clientv3.Txn
	way      *forgetful
	compares bool
}

func (t *forgetfulTxn) If(c ...clientv3.Cmp) clientv3.Txn {
	t.Txn, t.compares = t.Txn.If(c...), true
	return t
}
func (t *forgetfulTxn) Then(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(o...); return t }
func (t *forgetfulTxn) Else(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(o...); return t }

func (t *forgetfulTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.Txn.Commit()
	then := t.way.then
	if err != nil || then == nil || !t.compares {
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

// The client repeats a transaction after its answer was lost. The first one's write is
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
			// The memory of it is now right, or is not relied on.
			if _, err := count(t, s, term); err != nil || value(t, other, "n") != want+"I" {
				t.Errorf("term %d, outrun %v: then it is %s (%v)", term, outrun, value(t, other, "n"), err)
			}
		}
	}
}

// The written record may be gone again before the transaction is repeated.
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

// briefly is an etcd that has less left of its leases than a host's clock says.
type briefly struct {
	clientv3.Lease
	ttl   int64
	asked int
}

func (b *briefly) TimeToLive(context.Context, clientv3.LeaseID, ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	b.asked++
	return &clientv3.LeaseTimeToLiveResponse{TTL: b.ttl}, nil
}

// A view shows no more left of a term than etcd says, under any clocks of hosts. An error may
// rest on an estimate.
func TestLeftIsWhatEtcdSays(t *testing.T) {
	cfg := etcdtest.Shared(t)
	mustPut(t, mustOpen(t, cfg), record.Write{Key: "k", Value: []byte("1"), TermMS: 60_000, KeepMS: 1000})
	ask := record.Ask{Keys: []string{"k"}}
	for _, ahead := range []int64{-3 * 3600_000, 0, 3 * 3600_000} {
		s := mustOpen(t, cfg)
		now := s.nowMS
		s.nowMS = func() int64 { return now() + ahead }
		clock := &briefly{Lease: s.conn.KV.Lease, ttl: 3}
		s.conn.KV.Lease = clock
		want := int64(3000)
		if ahead > 0 {
			want = 1
		}
		v, err := s.Read(testContext(t), ask)
		if got := v.Records["k"]; err != nil || got.LeftMS != want || got.Over {
			t.Errorf("by a clock ahead by %d ms, Read has %+v (%v), want %d ms left", ahead, got, err, want)
		}
		var left int64
		if _, err := s.Change(testContext(t), ask, func(v record.View) ([]record.Write, error) {
			left = v.Records["k"].LeftMS
			return nil, nil
		}); err != nil || left != want {
			t.Errorf("by a clock ahead by %d ms, a rule is shown %d ms (%v), want %d", ahead, left, err, want)
		}
		clock.asked = 0
		if _, err := s.Change(testContext(t), ask, func(record.View) ([]record.Write, error) { return nil, errors.New("no") }); err == nil || clock.asked != 0 {
			t.Errorf("a refusal asked etcd %d times how much is left (%v)", clock.asked, err)
		}
	}
}

// A lease has ended, and etcd has not removed its keys yet: the term has not ended, and
// has a moment left. etcd is not asked again and again.
func TestLeaseThatHasEndedIsAskedTwice(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	mustPut(t, s, record.Write{Key: "k", Value: []byte("1"), TermMS: 60_000, KeepMS: 1000})
	ended := &briefly{Lease: s.conn.KV.Lease, ttl: -1}
	s.conn.KV.Lease = ended
	ask := record.Ask{Keys: []string{"k"}}
	v, err := s.Read(testContext(t), ask)
	if got := v.Records["k"]; err != nil || got.Over || got.LeftMS != 1 || ended.asked != 2 {
		t.Errorf("Read has %+v (%v) after %d questions, want 1 ms left after 2", got, err, ended.asked)
	}
	ended.asked = 0
	_, err = s.Change(testContext(t), ask, func(v record.View) ([]record.Write, error) { return nil, nil })
	if err != nil || ended.asked > 2 {
		t.Errorf("a change that writes nothing asked %d times (%v), want 2 at most", ended.asked, err)
	}
}

// A term that ends while etcd is asked how much is left of it is over.
func TestTermEndsWhileAsked(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	mustPut(t, s, record.Write{Key: "k", Value: []byte("1"), TermMS: 60_000, KeepMS: 1000})
	s.conn.KV.Lease = &ending{Lease: s.conn.KV.Lease}
	v, err := s.Read(testContext(t), record.Ask{Keys: []string{"k"}})
	if got := v.Records["k"]; err != nil || !got.Over || got.LeftMS != 0 {
		t.Errorf("it is %+v (%v), want it over", got, err)
	}
}

// ending ends each lease that it is asked about.
type ending struct{ clientv3.Lease }

func (e *ending) TimeToLive(ctx context.Context, id clientv3.LeaseID, o ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	if _, err := e.Revoke(ctx, id); err != nil {
		return nil, err
	}
	return e.Lease.TimeToLive(ctx, id, o...)
}
