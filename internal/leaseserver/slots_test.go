package leaseserver

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// counted is a provider with a List that counts, and can be held up.
type counted struct {
	provider.Provider
	lists   atomic.Int64
	entered chan struct{} // nil: it goes on at once
	letGo   chan struct{}
}

func (c *counted) List(ctx context.Context, service string) ([]provider.Record, error) {
	c.lists.Add(1)
	if c.entered != nil {
		c.entered <- struct{}{}
		<-c.letGo
	}
	return c.Provider.List(ctx, service)
}

func countedRig(t *testing.T, change func(*rig)) (*rig, *counted) {
	c := &counted{}
	return newRig(t, func(g *rig) {
		if change != nil {
			change(g)
		}
		c.Provider = g.memory()
		g.options.Provider = c
	}), c
}

// answered decodes a good answer.
func answered[T any](g *rig, target string) (out T) {
	g.t.Helper()
	r := g.send("GET", target, "", "")
	if err := json.Unmarshal([]byte(r.body), &out); r.status != 200 || err != nil {
		g.t.Fatalf("%s: status %d, %v: %s", target, r.status, err, r.body)
	}
	return out
}

// However many look, at any pages, the store lists its pool once in a while.
func TestManyViewersAreOneList(t *testing.T) {
	g, c := countedRig(t, nil)
	g.server.stats.fresh = time.Hour
	g.acquire("", `{"meta":{"host":"a"}}`)
	const viewers = 50
	c.entered, c.letGo = make(chan struct{}, viewers), make(chan struct{})
	var all sync.WaitGroup
	targets := []string{"/leases/map", "/leases/map?from=10&to=20", "/leases/find?host=a", "/status.json", "/metrics"}
	for i := range viewers {
		all.Go(func() {
			if r := g.send("GET", targets[i%len(targets)], "", ""); r.status != 200 {
				t.Errorf("%+v", r)
			}
		})
	}
	<-c.entered
	await.Eventually(t, "all requests are under way", func() bool { return len(g.server.slots) == viewers })
	close(c.letGo)
	all.Wait()
	for _, target := range targets {
		g.send("GET", target, "", "")
	}
	if n := c.lists.Load(); n != 1 {
		t.Errorf("the pool was listed %d times", n)
	}
}

// A view has nothing of a grant's meta but who the holder is.
func TestViewsAreSmall(t *testing.T) {
	g := newRig(t, nil)
	g.acquire("", `{"meta":{"host":"a","pid":"7","note":"`+strings.Repeat("x", 10_000)+`"}}`)
	found := answered[leaseapi.Holders](g, "/leases/find")
	v, err := g.server.view(t.Context(), "")
	if err != nil || len(v.records) != 1 || v.records[0].Meta != nil {
		t.Errorf("%v, %+v", err, v)
	}
	if len(found.Holders) != 1 || found.Holders[0].Host != "a" || found.Holders[0].PID != "7" || found.More {
		t.Errorf("%+v", found)
	}
}

// The map agrees with the answer for each single machine ID.
func TestMapAgreesWithSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const now, ids, bitSeq = 1000, 64, 4
		v := &view{atMS: now}
		var states [ids]string
		for id := range ids {
			states[id] = leaseapi.SlotFree
		}
		// Grants of three layouts, which do not overlap while they count, as the grant
		// rule has it.
		for at := int64(0); at < ids<<bitSeq; {
			seq := rapid.SampledFrom([]int{bitSeq - 2, bitSeq, bitSeq + 2}).Draw(t, "bit_seq")
			if at%(1<<seq) != 0 {
				seq = bitSeq - 2
			}
			is := rapid.SampledFrom([]string{"", leaseapi.SlotFree, leaseapi.SlotLeased, leaseapi.SlotQuarantined, "released"}).Draw(t, "state")
			l := lease.Lease{ID: at >> seq, BitTS: 41, BitID: 22 - seq, BitSeq: seq, Created: 10, Expired: 900}
			r := provider.Record{Lease: l, End: 950}
			switch is {
			case leaseapi.SlotLeased:
				r.Lease.Expired, r.End = 1100, 1200
			case leaseapi.SlotQuarantined:
				r.End = 1200
			case "released":
				r.Released, r.Lease.Expired = true, 1100
			}
			if is != "" {
				v.records = append(v.records, r)
			}
			for id := at >> bitSeq; id < (at+1<<seq-1)>>bitSeq+1 && (is == leaseapi.SlotLeased || is == leaseapi.SlotQuarantined); id++ {
				if states[id] != leaseapi.SlotLeased {
					states[id] = is
				}
			}
			at += 1 << seq
		}
		from := rapid.Int64Range(0, ids-1).Draw(t, "from")
		to := rapid.Int64Range(from+1, ids).Draw(t, "to")
		each := int64(1) << rapid.IntRange(0, 7).Draw(t, "each")
		cells := v.cells(mapPart{bitSeq, from, to, each})
		if want := (to - from + each - 1) / each; int64(len(cells)) != want {
			t.Fatalf("%d cells, want %d", len(cells), want)
		}
		for i, cell := range cells {
			counts := map[string]int64{}
			first := from + int64(i)*each
			for id := first; id < min(first+each, to); id++ {
				counts[states[id]]++
			}
			size := min(each, to-first)
			for name, got := range map[string]byte{leaseapi.SlotLeased: cell >> 4, leaseapi.SlotQuarantined: cell & 15} {
				if n := counts[name]; (got == 0) != (n == 0) || (got == 15) != (n == size) || n > 0 && n < size && (int64(got)-1)*size > 14*n {
					t.Fatalf("cell %d has %d of 15 %s, and %d of %d are: %v", i, got, name, n, size, v.records)
				}
			}
		}
	})
}

func TestMap(t *testing.T) {
	g := newRig(t, func(g *rig) {
		g.services.Default.IDs = provider.IDRange{Low: 100, End: 110}
		g.pool("large", "large")
		large := g.services.Named["large"]
		large.BitID, large.BitSeq = 21, 1
		g.services.Named["large"] = large
	})
	g.server.stats.fresh = 0
	l := g.acquire("", `{"meta":{"host":"web-1"}}`)
	at := func(id int64) byte {
		t.Helper()
		m := answered[leaseapi.SlotMap](g, "/leases/map")
		if m.From != 100 || m.To != 110 || m.Low != 100 || m.End != 110 || m.IDsPerCell != 1 || len(m.Cells) != 10 || m.Pool != "default" {
			t.Fatalf("%+v", m)
		}
		return m.Cells[id-100]
	}
	if got := at(l.ID); got != 0xf0 {
		t.Errorf("leased: %x", got)
	}
	g.clock.Store(l.Expired)
	if got := at(l.ID); got != 0x0f {
		t.Errorf("quarantined: %x", got)
	}
	found := answered[leaseapi.Holders](g, fmt.Sprintf("/leases/find?from=%d&to=%d", l.ID, l.ID+1))
	if len(found.Holders) != 1 || found.Holders[0].State != leaseapi.SlotQuarantined || found.Holders[0].FreeAt != l.ReservedUntil || found.Holders[0].Host != "web-1" {
		t.Errorf("%+v", found)
	}
	g.clock.Store(l.ReservedUntil)
	if got := at(l.ID); got != 0 {
		t.Errorf("free: %x", got)
	}
	// A large layout is shown in cells of many, and part by part.
	big := g.acquire("", `{"serviceId":"large"}`)
	m := answered[leaseapi.SlotMap](g, "/leases/map?serviceId=large")
	if m.End != 1<<20 || m.IDsPerCell != 128 || len(m.Cells) != 8192 || m.Cells[big.ID/128] != 0x10 {
		t.Errorf("%d cells of %d, %x", len(m.Cells), m.IDsPerCell, m.Cells[big.ID/128])
	}
	cell := big.ID / 128 * 128
	m = answered[leaseapi.SlotMap](g, fmt.Sprintf("/leases/map?serviceId=large&from=%d&to=%d", cell, cell+128))
	if m.IDsPerCell != 1 || len(m.Cells) != 128 || m.Cells[big.ID-cell] != 0xf0 {
		t.Errorf("%d cells of %d", len(m.Cells), m.IDsPerCell)
	}
	for _, target := range []string{
		"/leases/map?from=99", "/leases/map?to=111", "/leases/map?from=105&to=105", "/leases/map?cells=0", "/leases/map?cells=8193",
		"/leases/map?from=x", "/leases/find?from=-1", "/leases/find?limit=0", "/leases/find?limit=1001",
		"/leases/find?limit=x", "/leases/find?limit=%2B5", "/leases/find?limit=05", "/leases/find?limit=1e1", "/leases/find?limit=99999999999999999999",
	} {
		g.want(target, g.send("GET", target, "", ""), problem.InvalidRequest)
	}
}

func TestFind(t *testing.T) {
	g := newRig(t, nil)
	g.server.stats.fresh = 0
	var mine []lease.Lease
	for i := range 5 {
		mine = append(mine, g.acquire("", fmt.Sprintf(`{"meta":{"host":"Web-%d.example.net","pid":"%d"}}`, i, 100+i)))
	}
	if got := answered[leaseapi.Holders](g, "/leases/find?host=wEB-3"); len(got.Holders) != 1 || got.Holders[0].MachineID != mine[3].ID || got.Holders[0].PID != "103" {
		t.Errorf("%+v", got)
	}
	if got := answered[leaseapi.Holders](g, "/leases/find?host=example&limit=4"); len(got.Holders) != 4 || !got.More {
		t.Errorf("%+v", got)
	}
	if got := answered[leaseapi.Holders](g, "/leases/find?limit=5"); len(got.Holders) != 5 || got.More {
		t.Errorf("%+v", got)
	}
	if got := answered[leaseapi.Holders](g, "/leases/find?host=nobody"); len(got.Holders) != 0 || got.More {
		t.Errorf("%+v", got)
	}
}

// Who made an ID is told as inspect --provider does.
func TestMaker(t *testing.T) {
	g := newRig(t, nil)
	l := g.acquire("", `{"meta":{"host":"web-1","pid":"42"},"serviceId":"orders"}`)
	tl := l.Timeline()
	id := tl.ID(testNow+5, l.Slot().Start+3)
	var codec snowflake.Codec
	g.clock.Add(1000)
	for _, text := range []string{fmt.Sprint(int64(id)), fmt.Sprintf("0x%x", int64(id)), codec.Encode(id)} {
		m := answered[leaseapi.Maker](g, "/leases/maker?serviceId=orders&id="+text)
		if m.ID != fmt.Sprint(int64(id)) || m.Kind != "regular" || m.MachineID != l.ID || m.Sequence != 3 || m.Timestamp != testNow+5 ||
			len(m.Holders) != 1 || m.Holders[0].Host != "web-1" || m.Holders[0].PID != "42" || m.Holders[0].Service != "orders" {
			t.Errorf("%s: %+v", text, m)
		}
		if external := text == codec.Encode(id); external != strings.Contains(m.Note, "external") {
			t.Errorf("%s: note %q", text, m.Note)
		}
	}
	late := tl.ID(l.Expired+60_000, l.Slot().Start|tl.FallbackBit())
	m := answered[leaseapi.Maker](g, fmt.Sprint("/leases/maker?id=", int64(late)))
	if m.Kind != "fallback" || len(m.Holders) != 0 || !strings.Contains(m.Note, "no lease stands behind") {
		t.Errorf("%+v", m)
	}
	// An ID without a holder.
	other := tl.ID(testNow+5, (l.ID+1)<<8)
	if m := answered[leaseapi.Maker](g, fmt.Sprint("/leases/maker?id=", int64(other))); len(m.Holders) != 0 || !strings.Contains(m.Note, "nobody known") {
		t.Errorf("%+v", m)
	}
	ahead := tl.ID(testNow+3_600_000, l.Slot().Start)
	if m := answered[leaseapi.Maker](g, fmt.Sprint("/leases/maker?id=", int64(ahead))); len(m.Holders) != 0 || !strings.Contains(m.Note, "still to come") {
		t.Errorf("%+v", m)
	}
	for _, text := range []string{"", "x", "0x", "-1", "99999999999999999999", "18446744073709551615", "!!!!!!!!!!!"} {
		g.want(text, g.send("GET", "/leases/maker?id="+text, "", ""), problem.InvalidRequest)
	}
}

func TestOverview(t *testing.T) {
	fenced := &stub{}
	g := newRig(t, func(g *rig) {
		g.services.Default.IDs = provider.IDRange{Low: 0, End: 10}
		g.pool("imports", "imports")
		g.pool("orders", "default")
		fenced.Provider = g.memory()
		g.options.Provider = fenced
	})
	g.server.stats.fresh = 0
	g.acquire("", `{"throughputPerMs":512}`)
	o := answered[Overview](g, "/status.json")
	if o.State != "ready" || o.Granted != 2 || o.Refused != 0 || len(o.Pools) != 2 || o.Pools[0].Pool != "default" || o.Pools[1].Pool != "imports" {
		t.Fatalf("%+v", o)
	}
	p := o.Pools[0]
	if p.Leased != 2 || p.Free != 8 || p.Quarantined != 0 || p.End != 10 || p.ListedAt != testNow || fmt.Sprint(p.Services) != "[orders]" || p.FencedUntil != 0 ||
		p.Forecast.FullAt != nil || !strings.Contains(p.Forecast.Note, "not known yet") {
		t.Errorf("%+v", p)
	}
	fenced.err = &provider.FencedError{UntilMS: testNow + 5000, Reason: "restarted"}
	g.send("POST", "/lease", "", "")
	fenced.err = nil
	if o := answered[Overview](g, "/status.json"); o.Pools[0].FencedUntil != testNow+5000 || o.Pools[1].FencedUntil != 0 || o.Refused != 1 {
		t.Errorf("fenced: %+v", o)
	}
	g.clock.Add(5000)
	if o := answered[Overview](g, "/status.json"); o.Pools[0].FencedUntil != 0 {
		t.Errorf("after the fence: %+v", o.Pools[0])
	}
	fenced.err = errFailed
	if p := answered[Overview](g, "/status.json").Pools[0]; p.ListedAt != 0 || p.Problem == "" || p.Forecast.FullAt != nil {
		t.Errorf("a pool that cannot be looked at: %+v", p)
	}
}

func TestForecast(t *testing.T) {
	const second, minute, hour = 1000, 60_000, 3_600_000
	course := func(span, step int64, taken func(at int64) int64) *trend {
		tr := &trend{}
		for at := int64(0); at <= span; at += step {
			tr.add(at, taken(at))
		}
		return tr
	}
	for name, test := range map[string]struct {
		trend  *trend
		free   int64
		full   int64 // from now; -1: none
		within int64
		note   string
	}{
		"nothing known":  {&trend{}, 100, -1, 0, "not known yet"},
		"a short while":  {course(4*minute, 10*second, func(at int64) int64 { return at / second }), 100, -1, 0, "not known yet"},
		"full":           {&trend{}, 0, 0, 0, "no slot is free"},
		"one a second":   {course(10*minute, 10*second, func(at int64) int64 { return at / second }), 7200, 2 * hour, minute, "if it goes on"},
		"steady":         {course(hour, 10*second, func(int64) int64 { return 500 }), 100, -1, 0, "not filling up"},
		"emptying":       {course(hour, 10*second, func(at int64) int64 { return 5000 - at/second }), 100, -1, 0, "not filling up"},
		"to and fro":     {course(hour, 10*second, func(at int64) int64 { return 500 + at/(10*second)%7*10 }), 100, -1, 0, "not filling up"},
		"one in an hour": {course(hour, 10*second, func(at int64) int64 { return at / (30 * minute) }), 8000, -1, 0, "not within"},
	} {
		now := int64(0)
		if n := len(test.trend.points); n > 0 {
			now = test.trend.points[n-1].atMS
		}
		f := test.trend.forecast(now, test.free)
		if !strings.Contains(f.Note, test.note) || (f.FullAt == nil) != (test.full < 0) {
			t.Errorf("%s: %+v", name, f)
		} else if f.FullAt != nil && (*f.FullAt < now+test.full-test.within || *f.FullAt > now+test.full+test.within) {
			t.Errorf("%s: full in %d ms, want %d", name, *f.FullAt-now, test.full)
		}
	}
	// Points come no nearer than the step, and go after the span.
	tr := course(3*hour, second, func(at int64) int64 { return 0 })
	if n := len(tr.points); n != 361 || tr.points[0].atMS != 2*hour {
		t.Errorf("%d points from %d", n, tr.points[0].atMS)
	}
}

// What the status page shows is of all tenants, so that a host's token does not
// do; the page itself has nothing, and is for everybody.
func TestStatusPageNeedsAdmin(t *testing.T) {
	g := newRig(t, func(g *rig) { g.tokens(allTokens) })
	l := g.acquire("a-token-that-may-do-everything", "")
	id := l.Timeline().ID(testNow, l.Slot().Start)
	for _, target := range []string{"/status.json", "/leases/map", "/leases/find", fmt.Sprint("/leases/maker?id=", int64(id))} {
		g.want(target, g.send("GET", target, "", ""), problem.Unauthenticated)
		for _, token := range []string{"a-token-for-leases-and-nothing-else", "a-token-for-locks-and-nothing-else"} {
			g.want(target, g.send("GET", target, token, ""), problem.Forbidden)
		}
		if r := g.send("GET", target, "a-token-that-may-do-everything", ""); r.status != 200 || r.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %+v", target, r)
		}
	}
	if r := g.send("GET", "/", "", ""); r.status != 200 || !strings.Contains(r.header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("the page: %d %v", r.status, r.header)
	}
}
