package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// only is terms for these machine IDs.
func only(low, high int64) provider.Terms {
	t := provider.DefaultTerms()
	t.IDs = provider.IDRange{Low: low, End: high + 1}
	return t
}

func (r *rig) one(p *Provider) lease.Lease {
	r.t.Helper()
	leases, err := p.Acquire(ctx(r.t), provider.AcquireRequest{})
	must.Succeed(r.t, err)
	return leases[0]
}

func (r *rig) slot(id int64) slot {
	object := r.Snapshot().Objects[slotName("default", id)]
	return readSlot(&object, id)
}

func (r *rig) head() head {
	r.t.Helper()
	object := r.Snapshot().Objects[headName("default")]
	h, err := readHead(&object)
	must.Succeed(r.t, err)
	return h
}

// before calls f before the next request with this method and this end of the path.
func (r *rig) before(method, suffix string, f func()) {
	var done atomic.Bool
	r.Fault(func(_ http.ResponseWriter, req *http.Request) bool {
		if req.Method == method && strings.HasSuffix(req.URL.Path, suffix) && !done.Swap(true) {
			f()
		}
		return false
	})
}

// loseAnswer has the answers to writes that are carried out get lost, and calls then.
func (r *rig) loseAnswer(then func()) {
	r.Fault(func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodPost && req.Method != http.MethodPut {
			return false
		}
		answer := httptest.NewRecorder()
		r.Serve(answer, req)
		if answer.Code > 299 {
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())
			return true
		}
		then()
		panic(http.ErrAbortHandler)
	})
}

// A pool that is closed between the write of a slot and the reading of the head does not
// know the grant: it is given back unused.
func TestAPoolThatIsClosedMeanwhile(t *testing.T) {
	r := newRig(t)
	terms := only(5, 5)
	p, other := r.open(terms), r.open(terms)
	l := r.one(p)
	must.Succeed(t, p.Release(ctx(t), providertest.SignedRelease(l, l.Created)))
	r.clock.Add(1)
	// The holder has read the head before; it reads it again after its write.
	r.before(http.MethodPut, slotName("default", 5), func() {
		r.Fault(nil)
		_, err := other.Fence(ctx(t))
		must.Succeed(t, err)
	})
	leases, err := p.Acquire(ctx(t), provider.AcquireRequest{})
	if _, fenced := errors.AsType[*provider.FencedError](err); !fenced {
		t.Fatalf("the grant that the fence does not know was used: %v, %v", leases, err)
	}
	if after := r.slot(5); after.End > r.clock.Load() {
		t.Errorf("the unused grant was not given back: %+v", after)
	}
}

// The same, where the head was deleted and made anew, in another layout.
func TestAHeadThatIsMadeAnewMeanwhile(t *testing.T) {
	r := newRig(t)
	coarse := provider.DefaultTerms().WithBitSeq(9)
	p, other := r.open(only(0, 1)), r.open(coarse)
	living := r.one(p) // it ends 20 minutes from now
	r.clock.Add(1000)
	r.before(http.MethodPost, "/leases", func() {
		r.Fault(nil)
		r.Delete(headName("default"))
		_, err := other.Acquire(ctx(t), provider.AcquireRequest{})
		fenced, ok := errors.AsType[*provider.FencedError](err)
		if !ok || fenced.UntilMS != living.ReservedUntil {
			t.Errorf("the new head grants before the leases of the old one have ended: %v", err)
		}
	})
	leases, err := p.Acquire(ctx(t), provider.AcquireRequest{})
	if err == nil {
		t.Fatalf("a grant by the deleted head was used: %v", leases)
	}
	for id := range int64(2) {
		if s := r.slot(id); id != living.ID && s.End != never && s.End > r.clock.Load() {
			t.Errorf("the unused grant was not given back: %+v", s)
		}
	}
}

// The opener of a pool lists the store's slots, and not the server's cache.
func TestACloserReadsNoCache(t *testing.T) {
	r := newRig(t)
	r.Freeze()
	l := r.one(r.open(only(0, 7)))
	r.Delete(headName("default"))
	_, err := r.open(only(0, 7)).Acquire(ctx(t), provider.AcquireRequest{})
	if fenced, ok := errors.AsType[*provider.FencedError](err); !ok || fenced.UntilMS != l.ReservedUntil {
		t.Errorf("the error is %v, want a fence until %d", err, l.ReservedUntil)
	}
}

// A grant that was never confirmed does not count once the pool was closed: the process that closed
// it may not have seen it.
func TestAGrantThatWasNotConfirmed(t *testing.T) {
	r := newRig(t)
	p, other := r.open(only(0, 7)), r.open(only(0, 7))
	r.one(other)
	for _, repeats := range []*Provider{p, other} {
		req := provider.AcquireRequest{RequestID: provider.NewSecret(), Client: provider.KnownClient}
		lost, cancel := context.WithCancel(context.Background())
		r.loseAnswer(cancel)
		if leases, err := p.Acquire(lost, req); err == nil {
			t.Fatalf("the call that was given up returned %v", leases)
		}
		cancel()
		r.Fault(nil)
		_, err := other.Fence(ctx(t))
		must.Succeed(t, err)
		must.Succeed(t, other.Init(ctx(t), "")) // which ends the fence
		if leases, err := repeats.Acquire(ctx(t), req); !errors.Is(err, provider.ErrConflict) {
			t.Errorf("the grant counts: %v, %v", leases, err)
		}
	}
}

// A write that was under way arrives while its request is repeated, after the pool was closed and
// listed without it: the grant does not count.
func TestAWriteThatArrivesLate(t *testing.T) {
	r := newRig(t)
	p, other := r.open(only(5, 5)), r.open(only(6, 6))
	r.one(other) // the head is there
	req := provider.AcquireRequest{RequestID: provider.NewSecret()}
	lost, cancel := context.WithCancel(context.Background())
	var late *http.Request
	r.Fault(func(_ http.ResponseWriter, q *http.Request) bool {
		if q.Method != http.MethodPost {
			return false
		}
		body, err := io.ReadAll(q.Body)
		must.Succeed(t, err)
		late = q.Clone(context.Background())
		late.Body = io.NopCloser(bytes.NewReader(body))
		cancel()
		panic(http.ErrAbortHandler)
	})
	if leases, err := p.Acquire(lost, req); err == nil {
		t.Fatalf("the call that was given up returned %v", leases)
	}
	r.before(http.MethodGet, slotName("default", 5), func() {
		r.Fault(nil)
		_, err := other.Fence(ctx(t))
		must.Succeed(t, err)
		must.Succeed(t, other.Init(ctx(t), "")) // which ends the fence
		r.Serve(httptest.NewRecorder(), late)
	})
	if leases, err := p.Acquire(ctx(t), req); !errors.Is(err, provider.ErrConflict) {
		t.Errorf("the grant counts: %v, %v", leases, err)
	}
}

// A closer that has died leaves a closed pool. The next process lists and opens it.
func TestACloserThatDies(t *testing.T) {
	r := newRig(t)
	p := r.open(only(0, 7))
	l := r.one(p)
	r.Edit(headName("default"), func(o *coordinationv1.Lease) {
		h, err := readHead(o)
		must.Succeed(t, err)
		*o = *h.closing(closedFence).object("default")
	})
	other := r.open(only(0, 7))
	_, err := other.Acquire(ctx(t), provider.AcquireRequest{})
	if fenced, ok := errors.AsType[*provider.FencedError](err); !ok || fenced.UntilMS < l.ReservedUntil {
		t.Fatalf("a closed pool was opened without a fence: %v", err)
	}
	if h := r.head(); h.Closed != "" {
		t.Errorf("the pool stays closed: %+v", h)
	}
}

// A pool without any slots waits until every lease has ended that they may have recorded.
func TestAllSlotsAreGone(t *testing.T) {
	r := newRig(t)
	p := r.open(only(0, 7))
	l, kept := r.one(p), r.one(p)
	r.Delete(slotName("default", l.ID))
	r.one(r.open(only(0, 7))) // an object that an operator deletes counts as never granted
	for id := range int64(8) {
		r.Delete(slotName("default", id))
	}
	_, err := r.open(only(0, 7)).Acquire(ctx(t), provider.AcquireRequest{})
	fenced, ok := errors.AsType[*provider.FencedError](err)
	if !ok || fenced.UntilMS < kept.ReservedUntil {
		t.Fatalf("a pool without its slots grants: %v", err)
	}
	r.clock.Store(fenced.UntilMS)
	r.one(r.open(only(0, 7)))
}

// A holder that finds its own object missing looks whether all are.
func TestAHolderNoticesThatSlotsAreGone(t *testing.T) {
	r := newRig(t)
	p := r.open(only(0, 7))
	l := r.one(p)
	r.Delete(slotName("default", l.ID))
	lost, err := provider.Verify(ctx(t), p, "", []lease.Lease{l})
	if err != nil || len(lost) != 1 {
		t.Fatalf("lost are %v, %v", lost, err)
	}
	if leases, err := p.Acquire(ctx(t), provider.AcquireRequest{}); err == nil {
		t.Errorf("the pool without slots granted %v", leases)
	}
}

// No grant and no extension ends after the head's bound.
func TestBound(t *testing.T) {
	r := newRig(t)
	p := r.open(only(0, 15))
	l := r.one(p)
	for range 12 {
		r.clock.Add((3 * time.Minute).Milliseconds())
		longer, err := provider.Extend(ctx(t), p, "", l)
		must.Succeed(t, err)
		l = longer
		fresh := r.one(p)
		if bound := r.head().Bound; bound < longer.ReservedUntil || bound < fresh.ReservedUntil {
			t.Fatalf("the bound is %d, and leases end at %d and %d", bound, longer.ReservedUntil, fresh.ReservedUntil)
		}
	}
}

// An extension that a closed pool does not know is not answered. Its slot keeps it: a repeated
// request may have been answered meanwhile.
func TestAnExtensionOfAPoolThatIsClosedMeanwhile(t *testing.T) {
	r := newRig(t)
	p, other := r.open(only(0, 7)), r.open(only(0, 7))
	l := r.one(p)
	r.clock.Add(time.Minute.Milliseconds())
	r.before(http.MethodPut, slotName("default", l.ID), func() {
		r.Fault(nil)
		_, err := other.Fence(ctx(t))
		must.Succeed(t, err)
	})
	longer, err := provider.Extend(ctx(t), p, "", l)
	if _, fenced := errors.AsType[*provider.FencedError](err); !fenced {
		t.Fatalf("extended to %v, %v", longer, err)
	}
	if s := r.slot(l.ID); s.End <= l.ReservedUntil {
		t.Errorf("the extension was taken back: %+v", s)
	}
}

// Two lease servers carry out one request. The one that wrote the slot finds the pool closed meanwhile,
// and does not free what the other one has answered with.
func TestAGrantThatAnotherLeaseServerHasAnswered(t *testing.T) {
	r := newRig(t)
	p, other := r.open(only(3, 3)), r.open(only(3, 3))
	request := provider.AcquireRequest{RequestID: strings.Repeat("a", 32), Client: provider.NewClient}
	r.one(r.open(only(4, 4))) // the head is there
	var answered []lease.Lease
	written := false
	r.Fault(func(w http.ResponseWriter, q *http.Request) bool {
		if q.Method == http.MethodPost && !written {
			written = true
			r.Serve(w, q)
			return true
		}
		if written && q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, headName("default")) {
			r.Fault(nil)
			var err error
			answered, err = other.Acquire(ctx(t), request)
			must.Succeed(t, err)
			if err := r.open(provider.DefaultTerms().WithBitSeq(9)).Init(ctx(t), ""); err == nil {
				t.Error("another layout, although leases live")
			}
		}
		return false
	})
	_, err := p.Acquire(ctx(t), request)
	if len(answered) != 1 {
		t.Fatalf("the other one has answered %v; %v", answered, err)
	}
	if lost, verifyErr := provider.Verify(ctx(t), other, "", answered); verifyErr != nil || len(lost) > 0 {
		t.Errorf("%v, which was answered, is lost: %v; the first one got %v", answered, verifyErr, err)
	}
}

// An extension begins in an open pool: who closed it may have listed the slots already.
func TestAnExtensionOfAClosedPool(t *testing.T) {
	r := newRig(t)
	p, coarse := r.open(only(0, 7)), r.open(provider.DefaultTerms().WithBitSeq(9))
	l := r.one(p)
	r.clock.Add(1000)
	r.Edit(headName("default"), func(o *coordinationv1.Lease) {
		h, err := readHead(o)
		must.Succeed(t, err)
		h = h.closing(closedLayout)
		h.NextBitSeq = 9
		*o = *h.object("default")
	})
	r.before(http.MethodPut, headName("default"), func() {
		r.Fault(nil)
		at := r.clock.Load()
		r.clock.Store(l.ReservedUntil) // a clock is ahead
		must.Succeed(t, coarse.Init(ctx(t), ""))
		r.clock.Store(at)
	})
	if longer, err := provider.Extend(ctx(t), p, "", l); err == nil {
		t.Errorf("extended to %v in a pool that has another layout", longer)
	}
}

// An extension that was written and not confirmed does not count in a pool that has got another
// layout meanwhile: its end was not seen then.
func TestAnExtensionThatWasNotConfirmed(t *testing.T) {
	r := newRig(t)
	terms := only(0, 7)
	terms.Quarantine = 0
	p, coarse := r.open(terms), r.open(provider.DefaultTerms().WithBitSeq(9))
	l := r.one(p)
	r.clock.Store(l.Expired - 1)
	r.Fault(func(_ http.ResponseWriter, q *http.Request) bool {
		if q.Method != http.MethodPut || !strings.HasSuffix(q.URL.Path, slotName("default", l.ID)) {
			return false
		}
		r.Fault(nil)
		r.clock.Store(l.ReservedUntil)
		must.Succeed(t, coarse.Init(ctx(t), ""))
		r.Serve(httptest.NewRecorder(), q)
		panic(http.ErrAbortHandler)
	})
	if longer, err := provider.Extend(ctx(t), p, "", l); err == nil {
		t.Fatalf("with a lost answer: extended to %v", longer)
	}
	if s := r.slot(l.ID); s.Lease.Expired <= l.Expired {
		t.Fatalf("the extension was not written: %+v", s)
	}
	if longer, err := provider.Extend(ctx(t), p, "", l); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("the repeated request: %v, %v", longer, err)
	}
}

// An answer that is lost: the object says whether the grant was made.
func TestALostAnswer(t *testing.T) {
	r := newRig(t)
	p := r.open(only(5, 5))
	r.one(r.open(only(6, 6))) // the head is there
	r.loseAnswer(func() { r.Fault(nil) })
	l := r.one(p)
	if s := r.slot(5); s.Lease.Created != l.Created || s.Number != 1 {
		t.Errorf("the lease is %v, the object has %+v", l, s)
	}
}

// An object that an operator deletes before it is released is not made anew, which an
// update without a uid would do.
func TestAReleaseOfADeletedObject(t *testing.T) {
	r := newRig(t)
	p := r.open(only(5, 5))
	l := r.one(p)
	p.releasing = func() { r.Delete(slotName("default", 5)) }
	if err := p.Release(ctx(t), providertest.SignedRelease(l, l.Created)); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("the error is %v", err)
	}
	if _, there := r.Snapshot().Objects[slotName("default", 5)]; there {
		t.Error("the deleted object is there again")
	}
}

// Objects of others, of a newer format, and what cannot be read are taken for ever. A head of a newer
// format is named.
func TestForeignObjects(t *testing.T) {
	r := newRig(t)
	p := r.open(only(0, 4))
	for range 5 {
		r.one(p)
	}
	r.clock.Add(time.Hour.Milliseconds())
	r.Edit(slotName("default", 3), func(o *coordinationv1.Lease) {
		o.Annotations[annotationGrant] = strings.Replace(o.Annotations[annotationGrant], `"bitSeq":8`, `"bitSeq":-8`, 1)
	})
	r.Edit(slotName("default", 0), func(o *coordinationv1.Lease) { delete(o.Annotations, annotationGrant) })
	newer := func(name, annotation string) {
		r.Edit(name, func(o *coordinationv1.Lease) {
			o.Annotations[annotation] = strings.Replace(o.Annotations[annotation], `"format":1`, `"format":2`, 1)
		})
	}
	newer(slotName("default", 4), annotationGrant)
	copied := r.Snapshot().Objects[slotName("default", 2)]
	r.Edit(slotName("default", 1), func(o *coordinationv1.Lease) { o.Annotations = copied.Annotations })
	if l := r.one(p); l.ID != 2 {
		t.Errorf("machine ID %d was granted", l.ID)
	}
	_, err := p.Acquire(ctx(t), provider.AcquireRequest{})
	if full, ok := errors.AsType[*provider.FullError](err); !ok || full.NextEndMS != r.slot(2).End {
		t.Errorf("the error is %v", err)
	}
	newer(headName("default"), annotationPool)
	if _, err := r.open(only(0, 4)).Acquire(ctx(t), provider.AcquireRequest{}); err == nil || !strings.Contains(err.Error(), "format 2, this one knows up to 1") {
		t.Errorf("with a head of a newer format the error is %v", err)
	}
	r.Edit(headName("default"), func(o *coordinationv1.Lease) { o.Annotations = nil })
	if _, err := r.open(only(0, 4)).Acquire(ctx(t), provider.AcquireRequest{}); err == nil || !strings.Contains(err.Error(), headName("default")) {
		t.Errorf("with a foreign head the error is %v", err)
	}
}

// The head of a pool orders-1 is no slot of orders, nor the other way round.
func TestNamesOfPools(t *testing.T) {
	for _, pool := range []string{"orders", "orders-1", "pool", "orders-pool", "orders-1-pool"} {
		for _, other := range []string{"orders", "orders-1", "pool", "orders-pool", "orders-1-pool"} {
			if id, ok := slotOf(pool, headName(other)); ok {
				t.Errorf("the head of %q is slot %d of %q", other, id, pool)
			}
			for _, id := range []int64{0, 1, 17} {
				if got, ok := slotOf(pool, slotName(other, id)); ok && (pool != other || got != id) {
					t.Errorf("slot %d of %q is slot %d of %q", id, other, got, pool)
				}
			}
		}
	}
	for _, name := range []string{"kazahana-orders-01", "kazahana-orders--1", "kazahana-orders-+1", "kazahana-orders-1x", "kazahana-orders-"} {
		if id, ok := slotOf("orders", name); ok {
			t.Errorf("%s is slot %d", name, id)
		}
	}
}

// Another layout is refused by name, and taken over by init once all leases have ended.
func TestLayout(t *testing.T) {
	r := newRig(t)
	p := r.open(only(0, 7))
	l := r.one(p)
	coarse := r.open(provider.DefaultTerms().WithBitSeq(9))
	for name, try := range map[string]func() error{
		"acquire": func() error { _, err := coarse.Acquire(ctx(t), provider.AcquireRequest{}); return err },
		"init":    func() error { return coarse.Init(ctx(t), "") },
	} {
		if err := try(); !errors.Is(err, provider.ErrInvalid) || !strings.Contains(err.Error(), "bit_seq 8") {
			t.Errorf("%s in another layout: %v", name, err)
		}
	}
	r.clock.Store(l.ReservedUntil)
	must.Succeed(t, coarse.Init(ctx(t), ""))
	wide := r.one(coarse)
	if _, err := p.Acquire(ctx(t), provider.AcquireRequest{}); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("in the former layout: %v", err)
	}
	must.Succeed(t, coarse.Release(ctx(t), providertest.SignedRelease(wide, wide.Created)))
}

// Leases of another layout have other objects. Under any clock, no grant begins before they have
// ended, nor after an operator has lifted the fence.
func TestAnotherLayoutAndTheClock(t *testing.T) {
	for name, change := range map[string]func(r *rig, l lease.Lease, coarse *Provider){
		"changed by init": func(r *rig, l lease.Lease, coarse *Provider) {
			r.clock.Store(l.ReservedUntil)
			must.Succeed(r.t, coarse.Init(ctx(r.t), ""))
			r.clock.Store(l.ReservedUntil - 1)
		},
		"the head is deleted": func(r *rig, _ lease.Lease, coarse *Provider) {
			r.Delete(headName("default"))
			if leases, err := coarse.Acquire(ctx(r.t), provider.AcquireRequest{}); err == nil {
				r.t.Errorf("the new head grants %v", leases)
			}
			must.Succeed(r.t, coarse.Init(ctx(r.t), ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			l := r.one(r.open(only(0, 7)))
			coarse := r.open(provider.DefaultTerms().WithBitSeq(9))
			change(r, l, coarse)
			for range 2 {
				leases, err := coarse.Acquire(ctx(t), provider.AcquireRequest{})
				if fenced, ok := errors.AsType[*provider.FencedError](err); !ok || fenced.UntilMS != l.ReservedUntil {
					t.Fatalf("%v, %v; a lease of another layout lives until %d", leases, err, l.ReservedUntil)
				}
				must.Succeed(t, coarse.Init(ctx(t), ""))
			}
			r.clock.Store(l.ReservedUntil)
			r.one(coarse)
		})
	}
}

// A pool that gets another layout while the bound is raised grants nothing in the layout that
// was read before.
func TestAnotherLayoutWhileTheBoundIsRaised(t *testing.T) {
	r := newRig(t)
	p, coarse := r.open(only(0, 7)), r.open(provider.DefaultTerms().WithBitSeq(9))
	l := r.one(p)
	r.clock.Store(l.ReservedUntil)
	must.Succeed(t, p.Ready(ctx(t))) // it knows the head, and the server's time
	r.before(http.MethodPut, headName("default"), func() {
		r.Fault(nil)
		must.Succeed(t, coarse.Init(ctx(t), ""))
	})
	if leases, err := p.Acquire(ctx(t), provider.AcquireRequest{}); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("in the former layout: %v, %v", leases, err)
	}
	r.one(coarse)
}

// A fence that an operator asks for while the layout changes is not dropped: the pool is opened
// by it, and then closed again.
func TestAFenceWhileTheLayoutChanges(t *testing.T) {
	r := newRig(t)
	l := r.one(r.open(only(0, 7)))
	coarse := r.open(provider.DefaultTerms().WithBitSeq(9))
	r.clock.Store(l.ReservedUntil)
	r.before(http.MethodPut, headName("default"), func() {
		r.Fault(nil)
		r.Edit(headName("default"), func(o *coordinationv1.Lease) { // by a process that then dies
			h, err := readHead(o)
			must.Succeed(t, err)
			*o = *h.closing(closedFence).object("default")
		})
	})
	if err := coarse.Init(ctx(t), ""); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("init in a pool that is fenced: %v", err)
	}
	if h := r.head(); h.NotBefore <= r.clock.Load() || h.BitSeq != l.BitSeq {
		t.Errorf("the fence was dropped: %+v", h)
	}
}

// A fence by hand is carried out although another process changes the head at the same moment.
func TestAFenceBesideAnotherChange(t *testing.T) {
	r := newRig(t)
	p := r.open(only(0, 7))
	l := r.one(p)
	r.before(http.MethodPut, headName("default"), func() {
		r.Edit(headName("default"), func(o *coordinationv1.Lease) {
			h, err := readHead(o)
			must.Succeed(t, err)
			raised, _ := h.raised(h.Bound+1, p.cfg.Services.Default)
			*o = *raised.object("default")
		})
	})
	fence, err := p.Fence(ctx(t))
	if err != nil || fence == nil || fence.UntilMS < l.ReservedUntil {
		t.Errorf("the fence is %v (%v), and a lease lives until %d", fence, err, l.ReservedUntil)
	}
}

// The fence is compared with the very time at which a grant begins: one reading of the clock
// decides both, whenever the clock goes back.
func TestOneReadingOfTheClock(t *testing.T) {
	back := time.Minute.Milliseconds()
	for n, more := int64(0), true; more; n++ { // the clock goes back after n readings
		r := newRig(t)
		ends := r.one(r.open(only(0, 7))).ReservedUntil
		r.clock.Store(ends)
		terms := provider.DefaultTerms().WithBitSeq(9)
		must.Succeed(t, r.open(terms).Init(ctx(t), "")) // no grant begins before the end in the other layout
		var readings atomic.Int64
		cfg := r.cfg(provider.Services{Default: terms})
		cfg.NowMS = func() int64 {
			if readings.Add(1) > n {
				return ends - back
			}
			return ends
		}
		p, err := Open(cfg)
		must.Succeed(t, err)
		leases, err := p.Acquire(ctx(t), provider.AcquireRequest{})
		if err == nil && leases[0].Created < ends {
			t.Errorf("with a clock that goes back after %d readings, the lease begins at %d, and one of another layout lives until %d", n, leases[0].Created, ends)
		}
		must.Succeed(t, p.Close())
		more = readings.Load() > n
	}
}

// A store that was put back from a snapshot: holders of grants that it has forgotten lose
// them, also where an older grant is in the slot.
func TestASnapshotIsPutBack(t *testing.T) {
	r := newRig(t)
	p := r.open(only(0, 1))
	first := r.one(p)
	must.Succeed(t, p.Release(ctx(t), providertest.SignedRelease(first, first.Created)))
	r.clock.Add(1)
	earlier := r.Snapshot()
	var leases []lease.Lease
	for range 2 {
		leases = append(leases, r.one(p))
	}
	lost, err := provider.Verify(ctx(t), p, "", leases)
	if err != nil || len(lost) > 0 {
		t.Fatalf("lost are %v, %v", lost, err)
	}
	r.Restore(earlier)
	if lost, err = provider.Verify(ctx(t), p, "", leases); err != nil || len(lost) != 2 {
		t.Errorf("after the restore, lost are %v, %v", lost, err)
	}
	// An operator who fences the pool keeps its machine IDs back for as long as they live.
	fenced, err := p.Fence(ctx(t))
	must.Succeed(t, err)
	if fenced.UntilMS < leases[0].ReservedUntil {
		t.Errorf("the fence ends at %d, and a forgotten lease at %d", fenced.UntilMS, leases[0].ReservedUntil)
	}
}

// What the cache does not show yet was released a moment ago: a pool is full only by a list
// that holds it.
func TestAStaleCache(t *testing.T) {
	const all = 100 // more than a search draws
	r := newRig(t)
	p, other := r.open(only(0, all-1)), r.open(only(0, all-1))
	leases, err := p.Acquire(ctx(t), provider.AcquireRequest{ThroughputPerMS: all * 256})
	if err != nil || len(leases) != all {
		t.Fatalf("%d machine IDs were granted, %v", len(leases), err)
	}
	r.Freeze()
	if _, err := other.Acquire(ctx(t), provider.AcquireRequest{}); err == nil {
		t.Fatal("a taken machine ID was granted")
	}
	must.Succeed(t, p.Release(ctx(t), providertest.SignedRelease(leases[0], leases[0].Created)))
	r.clock.Add(1)
	r.one(other)
	if leases, err := p.Acquire(ctx(t), provider.AcquireRequest{}); err == nil {
		t.Errorf("%v was granted twice", leases)
	}
}

// Lists go on where the server has forgotten their beginning.
func TestPages(t *testing.T) {
	r := newRig(t)
	p := r.open(provider.DefaultTerms())
	for range 5 {
		_, err := p.Acquire(ctx(t), provider.AcquireRequest{ThroughputPerMS: 256 * 256})
		must.Succeed(t, err)
	}
	var compacted atomic.Bool
	r.Fault(func(_ http.ResponseWriter, req *http.Request) bool {
		if req.URL.Query().Has("continue") && !compacted.Swap(true) {
			r.Compact()
		}
		return false
	})
	records, err := p.List(ctx(t), "")
	if err != nil || len(records) != 5*256 || !compacted.Load() {
		t.Fatalf("%d records, %v", len(records), err)
	}
	ids := map[int64]bool{}
	for _, record := range records {
		ids[record.Lease.ID] = true
	}
	if len(ids) != len(records) {
		t.Errorf("%d machine IDs in %d records", len(ids), len(records))
	}
}

// A free machine ID is found without a list, and what a renewal costs is known.
func TestRequestsOfARenewal(t *testing.T) {
	r := newRig(t)
	p := r.open(provider.DefaultTerms())
	l := r.one(p)
	before := r.Requests()
	const renewals = 6
	for range renewals {
		r.clock.Add((9 * time.Minute).Milliseconds())
		next := r.one(p)
		must.Succeed(t, p.Release(ctx(t), providertest.SignedRelease(l, next.Created)))
		l = next
	}
	got := r.Requests()
	if got["list"] > 1 { // at the beginning
		t.Errorf("requests are %v", got)
	}
	if writes := got["create"] + got["update"]; writes > 2+2*7+3 { // the head is made, opened and raised
		t.Errorf("%d writes for 7 grants and 6 releases: %v", writes, got)
	}
	if got["get"] > 2+3*6 { // the head before and after the grant, and the slot before the release
		t.Errorf("%d reads for 7 grants and 6 releases: %v", got["get"], got)
	}
	inAnHour := func(verbs ...string) (n float64) {
		for _, verb := range verbs {
			n += float64(got[verb]-before[verb]) / renewals * 60 / 9
		}
		return n
	}
	t.Logf("an idle daemon that is alone in its pool, and raises the bound of its head itself, makes %.0f writes and %.0f reads an hour, of which %d verify", inAnHour("create", "update"), inAnHour("get", "list")+60/5, 60/5)
}

// A process that starts in a pool in use lists nothing: it reads the head, the witness and the
// head again, and makes one object.
func TestRequestsOfAStart(t *testing.T) {
	r := newRig(t)
	r.one(r.open(provider.DefaultTerms()))
	before := r.Requests()
	r.one(r.open(provider.DefaultTerms()))
	got := r.Requests()
	for verb, most := range map[string]int{"get": 4, "list": 0, "create": 1, "update": 1} { // one more of each for a taken machine ID
		if n := got[verb] - before[verb]; n > most {
			t.Errorf("%d requests to %s", n, verb)
		}
	}
}

// An object has a bound: it remembers the last grants alone.
func TestSizeOfAnObject(t *testing.T) {
	r := newRig(t)
	p := r.open(only(5, 5))
	var sizes []int
	for range 2 * (keptGrants + 1) {
		leases, err := p.Acquire(ctx(t), provider.AcquireRequest{RequestID: provider.NewSecret(), Meta: map[string]string{
			"pod": "orders-6c9d8b7f5-x2x7q", "namespace": "shop", "node": "node-7", "host": "orders-6c9d8b7f5-x2x7q", "pid": "1", "version": "v0.1.0", "service": "default",
		}})
		must.Succeed(t, err)
		must.Succeed(t, p.Release(ctx(t), providertest.SignedRelease(leases[0], leases[0].Created)))
		r.clock.Add(1)
		text, err := json.Marshal(r.Snapshot().Objects[slotName("default", 5)])
		must.Succeed(t, err)
		sizes = append(sizes, len(text))
	}
	t.Logf("an object has %d to %d bytes", sizes[0], sizes[len(sizes)-1])
	if last := sizes[len(sizes)-1]; last > 4096 || last > sizes[keptGrants+1]+64 {
		t.Errorf("an object has %v bytes", sizes)
	}
}

// An object shows people who holds a machine ID, since when, for how long, and how often it was granted.
func TestObjectsForPeople(t *testing.T) {
	r := newRig(t)
	p := r.open(only(5, 5))
	leases, err := p.Acquire(ctx(t), provider.AcquireRequest{Meta: map[string]string{"namespace": "shop", "pod": "orders-1", "host": "node-7"}})
	must.Succeed(t, err)
	r.clock.Add(time.Minute.Milliseconds())
	longer, err := provider.Extend(ctx(t), p, "", leases[0])
	must.Succeed(t, err)
	object := r.Snapshot().Objects["kazahana-default-5"]
	if s := object.Spec; *s.HolderIdentity != "shop/orders-1" || *s.LeaseDurationSeconds != 600 || s.AcquireTime.UnixMilli() != longer.Created ||
		s.RenewTime.UnixMilli() != r.clock.Load() || *s.LeaseTransitions != 1 {
		t.Errorf("the object says %+v", s)
	}
	if object.Labels["app.kubernetes.io/managed-by"] != "kazahana" || len(object.OwnerReferences) > 0 {
		t.Errorf("the object has the labels %v and the owners %v", object.Labels, object.OwnerReferences)
	}
	must.Succeed(t, p.Release(ctx(t), providertest.SignedRelease(longer, r.clock.Load())))
	if holder := r.Snapshot().Objects["kazahana-default-5"].Spec.HolderIdentity; holder != nil {
		t.Errorf("after the release it is held by %s", *holder)
	}
}

// No object holds a secret.
func TestNoSecrets(t *testing.T) {
	r := newRig(t)
	p := r.open(provider.DefaultTerms())
	released, extended := r.one(p), r.one(p)
	secrets := []string{r.one(p).Secret, released.Secret, extended.Secret}
	r.clock.Add(1000)
	must.Succeed(t, p.Release(ctx(t), providertest.SignedRelease(released, released.Created)))
	_, err := provider.Extend(ctx(t), p, "", extended)
	must.Succeed(t, err)
	for name, object := range r.Snapshot().Objects {
		text := fmt.Sprint(object)
		if slices.ContainsFunc(secrets, func(s string) bool { return strings.Contains(text, s) }) {
			t.Errorf("%s holds a secret", name)
		}
	}
}
