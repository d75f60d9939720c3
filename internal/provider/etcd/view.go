package etcd

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// maxViewMarks bounds a view's memory, at 40 bytes each. A pool with more
	// records is searched by scan.
	maxViewMarks = 1 << 17
	// viewPage is how many records are read at a time.
	viewPage = 1000
	// viewIdle is how far apart acquires may be for a view to be worth it: each
	// view has every change of the pool sent to this process. A daemon that
	// renews every nine minutes has none, a lease server has.
	viewIdle = time.Minute
	// viewWait is how long an acquire waits for a view to catch up.
	viewWait = 300 * time.Millisecond
	// viewRetry is when a view that failed, or was too large, is tried again.
	viewRetry = 5 * time.Second
	viewLarge = 10 * time.Minute
)

// view is all slots of a pool as of one revision, kept up to date by a watch.
type view struct {
	pool *knownPool
	end  context.CancelFunc

	mu    sync.Mutex
	marks []mark // in the order of compareMarks
	line  *pool.Line
	rev   int64 // every change up to it is in marks; 0 before the first load
	// moved is closed and replaced when rev grows, and closed for good when the
	// view is given up.
	moved chan struct{}
	ended bool
}

// useView notes an acquire at this time, and returns the pool's view, nil when
// there is none. It starts one when acquires come often.
func (p *Provider) useView(pl *knownPool, now time.Time) *view {
	pl.mu.Lock() // before p.mu
	defer pl.mu.Unlock()
	often := now.Sub(pl.lastUse) < viewIdle
	pl.lastUse = now
	if pl.view == nil && often && now.After(pl.noViewBefore) {
		pl.view = p.startView(pl)
	}
	return pl.view
}

// startView is nil once the provider is being closed.
func (p *Provider) startView(pl *knownPool) *view {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	ctx, cancel := context.WithCancel(p.lifetime)
	v := &view{pool: pl, end: cancel, moved: make(chan struct{})}
	p.views.Go(func() { p.maintain(ctx, v) })
	return v
}

// maintain loads the view and follows the changes until nobody uses it, or it
// cannot go on. Then it is dropped, and a later acquire starts another.
func (p *Provider) maintain(ctx context.Context, v *view) {
	retry := viewRetry
	if ok, err := v.load(ctx, p); err == nil && ok {
		v.follow(ctx, p)
	} else if err == nil {
		retry = viewLarge
	}
	v.end()
	v.mu.Lock()
	v.ended = true
	v.marks = nil
	close(v.moved)
	v.mu.Unlock()
	v.pool.mu.Lock()
	defer v.pool.mu.Unlock()
	v.pool.view = nil
	v.pool.noViewBefore = time.Now().Add(retry)
}

// revision is up to where the view knows everything, 0 for nothing.
func (v *view) revision() int64 {
	if v == nil {
		return 0
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.rev
}

// load reads the pool as of one revision. It reports whether it is small
// enough for a view.
func (v *view) load(ctx context.Context, p *Provider) (ok bool, err error) {
	var marks []mark
	var rev int64
	err = p.eachSlot(ctx, v.pool.keys, &rev, func(kv *mvccpb.KeyValue) (bool, error) {
		m, err := markOf(v.pool.keys, kv.Key, kv.Value, kv.ModRevision)
		marks = append(marks, m)
		return len(marks) <= maxViewMarks, err
	})
	if err != nil || len(marks) > maxViewMarks {
		return false, err
	}
	slices.SortFunc(marks, compareMarks)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.marks, v.line = marks, pool.NewLine(pool.EmptyLine(v.pool.timeline), poolMarks(marks))
	v.advance(rev)
	return true, nil
}

// advance is called with the lock held.
func (v *view) advance(rev int64) {
	v.rev = rev
	close(v.moved)
	v.moved = make(chan struct{})
}

// follow applies changes until the view is of no more use. What ends the watch
// (compaction, a lost member that leaves no other, an expired token) ends the
// view; the client has tried the other members by then.
func (v *view) follow(ctx context.Context, p *Provider) {
	from := v.pool.keys.base + "slot/"
	watch := p.conn.KV.Watch(clientv3.WithRequireLeader(ctx), from,
		clientv3.WithRange(after(from)), clientv3.WithRev(v.rev+1), clientv3.WithFilterDelete())
	idle := time.NewTicker(viewIdle)
	defer idle.Stop()
	for {
		select {
		case resp, ok := <-watch:
			if !ok || resp.Err() != nil || !v.apply(resp.Events) {
				return
			}
		case <-idle.C:
			v.pool.mu.Lock()
			unused := time.Since(v.pool.lastUse) > viewIdle
			v.pool.mu.Unlock()
			if unused {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// apply takes the changes of whole revisions, as etcd sends them, and reports
// whether the view can go on. A deleted record is not among them: it stays
// taken here until the view is loaded anew.
func (v *view) apply(events []*clientv3.Event) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	rev := v.rev
	for _, e := range events {
		m, err := markOf(v.pool.keys, e.Kv.Key, e.Kv.Value, e.Kv.ModRevision)
		if err != nil {
			return false
		}
		v.put(m)
		rev = max(rev, m.rev)
	}
	if rev > v.rev {
		v.advance(rev)
	}
	return len(v.marks) <= maxViewMarks
}

// put is called with the lock held. What this process wrote itself may be
// there already, newer than what the watch brings.
func (v *view) put(m mark) {
	i, found := indexOf(v.marks, m.Key)
	switch {
	case !found:
		v.marks = slices.Insert(v.marks, i, m)
	case v.marks[i].rev < m.rev:
		v.marks[i] = m
	default:
		return
	}
	v.line.Renew(m.Slot(), v.overlapping(m.Key))
}

// overlapping is the records whose slots overlap, in order.
func (v *view) overlapping(key pool.Key) []pool.Mark {
	var marks []pool.Mark
	for level := snowflake.ValueBits - 1; level > key.BitSeq; level-- {
		if i, found := indexOf(v.marks, pool.Key{Start: key.Start >> level << level, BitSeq: level}); found {
			marks = append(marks, v.marks[i].Mark)
		}
	}
	for i, _ := indexOf(v.marks, key); i < len(v.marks) && v.marks[i].Start < key.Slot().End; i++ {
		marks = append(marks, v.marks[i].Mark)
	}
	return marks
}

// granted notes grants of this process at once; the revision up to which
// everything is known stays.
func (v *view) granted(marks []mark) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended || v.rev == 0 {
		return
	}
	for _, m := range marks {
		v.put(m)
	}
}

// reached waits until the view knows the revision, and reports whether it does.
func (v *view) reached(ctx context.Context, rev int64) bool {
	patience := time.NewTimer(viewWait)
	defer patience.Stop()
	for {
		v.mu.Lock()
		known, ended, moved := v.rev != 0 && v.rev >= rev, v.ended, v.moved
		loading := v.rev == 0
		v.mu.Unlock()
		if known || ended || loading {
			return known && !ended
		}
		select {
		case <-moved:
		case <-patience.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
