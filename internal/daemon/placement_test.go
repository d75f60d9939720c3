package daemon

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/record/memory"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// site is where daemons that place actors meet.
type site struct {
	t       *testing.T
	locks   lock.Store
	records storage.Storage
}

func newSite(t *testing.T) *site {
	return &site{t, lock.OnRecords(memory.New(nil)), storage.OnRecords(memory.New(nil))}
}

// placed is a daemon with placement, and how to stop its driver.
type placed struct {
	*rig
	placement *Placement
	stopPlace func()
	marks     int // of upToDate
}

// start begins a daemon of the name, "" for a daemon that only resolves.
func (s *site) start(name string) *placed {
	s.t.Helper()
	believed := clock.NewBelieved(clock.System{}, clock.Config{})
	p := &placed{placement: NewPlacement(driver.Config{
		Tenant: "placement", Authority: name, Owner: name, Locks: s.locks, Records: s.records,
		Clock: believed, NowMS: believed.NowMS, Interval: 50 * time.Millisecond, TTL: time.Minute,
	}, hang)}
	p.rig = newRig(s.t, func(s *setup) { s.Placement = p.placement }).start()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = p.placement.Run(ctx)
	}()
	p.stopPlace = func() { cancel(); <-over }
	s.t.Cleanup(p.stopPlace) // before the rig's
	return p
}

// sees waits until the daemon knows so many members.
func (p *placed) sees(members int) *placed {
	p.t.Helper()
	await.Eventually(p.t, fmt.Sprintf("there are %d members", members), func() bool {
		now := p.placement.driver.Overview()
		return len(now.Members) == members && now.State != placement.StateNotReady
	})
	return p
}

// asked is a request from the daemon.
type asked struct {
	id     uint32
	method string
	params askedParams
}

type askedParams struct {
	Kind     string `msgpack:"kind"`
	Identity string `msgpack:"identity"`
	Version  int64  `msgpack:"version"`
	Token    int64  `msgpack:"token"`
	Snapshot []byte `msgpack:"snapshot"`
}

// next is the request that the daemon sends.
func (p *peer) next() asked {
	p.t.Helper()
	for {
		if a := p.request(); a.method != "Ping" { // it stays silent
			return a
		}
	}
}

// request returns the next one, of any method.
func (p *peer) request() (a asked) {
	p.t.Helper()
	raw, err := p.dec.DecodeRaw()
	must.Succeed(p.t, err)
	var message []msgpack.RawMessage
	p.decode(raw, &message)
	if len(message) != 4 || !bytes.Equal(message[0], pack(0)) {
		p.t.Fatalf("not a request: %x", []byte(raw))
	}
	p.decode(message[1], &a.id)
	p.decode(message[2], &a.method)
	var params []askedParams
	if p.decode(message[3], &params); len(params) != 1 {
		p.t.Fatalf("%s has %d params", a.method, len(params))
	}
	a.params = params[0]
	return a
}

// want is the next request, which has to be this one.
func (p *peer) want(method, identity string) asked {
	p.t.Helper()
	a := p.next()
	if a.method != method || a.params.Identity != identity {
		p.t.Fatalf("the daemon asks for %s of %s; want %s of %s", a.method, a.params.Identity, method, identity)
	}
	return a
}

func (p *peer) answer(a asked, failure, result any) { p.send(pack([]any{1, a.id, failure, result})) }

// worker is a peer that is registered for rooms.
func (r *placed) worker() *peer {
	r.t.Helper()
	w := r.dial()
	if got := w.table("Placement.Register", []string{"room"}); fmt.Sprint(got["kinds"]) != "[room]" || got["authority"] == "" {
		r.t.Fatalf("registered: %v", got)
	}
	r.serves(r)
	return w
}

// serves waits until the daemon knows that another one, or itself, serves rooms.
func (r *placed) serves(other *placed) {
	r.t.Helper()
	await.Eventually(r.t, fmt.Sprintf("%s serves rooms", other.placement.authority), func() bool { return r.knows(other, "room") })
}

// knows reports whether the daemon knows that another one, or itself, serves the kind.
func (r *placed) knows(other *placed, kind string) bool {
	return slices.ContainsFunc(r.placement.driver.Overview().Members, func(h placement.Host) bool {
		return h.Authority == other.placement.authority && slices.Contains(h.Kinds, kind)
	})
}

// upToDate waits until the daemon has seen all that it has announced so far. Else a process that
// registers again for a withdrawn kind could meet an older view.
func (r *placed) upToDate() {
	r.t.Helper()
	r.marks++
	mark := fmt.Sprint("mark", r.marks)
	p := r.dial()
	p.table("Placement.Register", []string{mark})
	await.Eventually(r.t, mark+" is seen", func() bool { return r.knows(r, mark) })
	_ = p.Close()
}

// activate has the room activated by the worker.
func (r *placed) activate(w *peer, identity string) asked {
	r.t.Helper()
	p := r.dial()
	p.ask("Placement.Resolve", "room", identity)
	a := w.want("Activate", identity)
	w.answer(a, nil, map[string]any{"pid": "p-" + identity})
	got := p.receive()
	if got.err != nil {
		r.t.Fatalf("room %s: %v", identity, got.err)
	}
	return a
}

func TestPlacementMethods(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w, p := r.worker(), r.dial()
	a := r.activate(w, "7")
	// Seed 004-40.
	if a.params.Kind != "room" || a.params.Version != 1 || a.params.Token < 1 || a.params.Snapshot != nil {
		t.Errorf("the process is asked for %+v", a.params)
	}
	got := p.table("Placement.Resolve", "room", "7", options{"wait_ms": 0})
	// Seeds 004-22 and 004-23.
	for name, want := range map[string]any{"kind": "room", "identity": "7", "authority": "a:1", "locality": "local", "pid": "p-7"} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
	if token, _ := asInt(got["token"]); int64(token) != a.params.Token {
		t.Errorf("the token is %v, and the process has %d", got["token"], a.params.Token)
	}
	valid, _ := asInt(w.table("Placement.Check", "room", "7", a.params.Token)["valid_ms"])
	if valid < 1 || time.Duration(valid)*time.Millisecond > placement.MaxPromise {
		t.Errorf("valid for %d ms", valid)
	}
	w.fails(wire.CodeActivationEnded, "Placement.Check", "room", "7", a.params.Token+1)
	p.fails(wire.CodeActivationEnded, "Placement.Check", "room", "7", a.params.Token) // it is not this one's

	if got := p.table("Placement.Unregister"); fmt.Sprint(got["passivated"]) != "0" {
		t.Errorf("one that never registered: %v", got)
	}
	w.ask("Placement.Unregister")
	w.answer(w.want("Passivate", "7"), nil, map[string]any{"snapshot": []byte("left")})
	if got := w.receive(); got.err != nil || !bytes.Equal(got.result, pack(map[string]any{"passivated": 1})) {
		t.Errorf("Unregister: %x, %v", []byte(got.result), got.err)
	}
	if e := p.fails(wire.CodePlacementUnserved, "Placement.Resolve", "room", "7", map[string]any{"wait_ms": 0}); !strings.Contains(e.Error(), `"room"`) {
		t.Errorf("without a process: %v", e)
	}
	r.upToDate()
	again := r.activate(r.worker(), "7")
	if again.params.Version != 2 || again.params.Token <= a.params.Token || string(again.params.Snapshot) != "left" {
		t.Errorf("the next process is asked for %+v", again.params)
	}
}

// What a process does wrong is told to who asked, or is no matter of theirs.
func TestActivationFails(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w, p := r.worker(), r.dial()
	p.ask("Placement.Resolve", "room", "1")
	w.answer(w.want("Activate", "1"), []any{0, "BROKEN: no such room"}, nil)
	got := p.receive()
	p.wantError(got, wire.CodeActivationFailed)
	if cause, _ := got.err.Detail("cause"); !strings.Contains(cause, "no such room") { // seed 004-56
		t.Errorf("the error is %v", got.err)
	}
	// An unreadable answer may mean that it is activated.
	for _, odd := range []any{nil, 5, map[string]any{}, map[string]any{"pid": 5}, map[string]any{"pid": strings.Repeat("x", placement.MaxPID+1)}} {
		p.ask("Placement.Resolve", "room", "1")
		w.answer(w.want("Activate", "1"), nil, odd)
		w.answer(w.want("Passivate", "1"), "also broken", nil)
		p.wantError(p.receive(), wire.CodeActivationFailed)
	}
	// No caller waits for these.
	w.answer(asked{id: 1 << 30}, nil, nil)
	w.answer(asked{id: 1}, nil, map[string]any{"pid": "late"})
	p.answer(asked{id: 2}, nil, nil)
	w.alive()
	p.alive()
	r.activate(w, "1")
}

// The end of the connection is the end of its actors, also of requested ones.
func TestExecutorGone(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w, p := r.worker(), r.dial()
	a := r.activate(w, "1")
	many := 200
	for i := range many {
		r.activate(w, fmt.Sprint("more", i))
	}
	p.ask("Placement.Resolve", "room", "2")
	w.want("Activate", "2")
	other := r.worker()
	_ = w.Close()
	p.wantError(p.receive(), wire.CodeActivationFailed)
	for i := range many { // who hears of the end of one is not told that others go on
		if _, ok := r.placement.driver.Known(placement.Key{Kind: "room", Identity: fmt.Sprint("more", i)}); ok {
			t.Fatalf("more%d is still said to run", i)
		}
	}
	for _, room := range []string{"1", "2"} {
		if again := r.activate(other, room); room == "1" && again.params.Version <= a.params.Version {
			t.Errorf("room 1: version %d after %d", again.params.Version, a.params.Version)
		}
	}
	await.Eventually(t, "the gone one is forgotten", func() bool {
		r.placement.executors.mu.Lock()
		defer r.placement.executors.mu.Unlock()
		return len(r.placement.executors.byConn) == 1 && len(r.placement.executors.assigned) == 2
	})
}

// A process that is cut off without its knowledge relies on nothing any more.
func TestPatienceIsLongerThanPromises(t *testing.T) {
	if least := min(defaultPatience.message, defaultPatience.write); least <= placement.MaxPromise {
		t.Errorf("a silent peer is cut off after %v, and may rely on an activation for %v", least, placement.MaxPromise)
	}
}

// Of several processes the one with the fewest is asked.
func TestExecutorsShare(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	workers := []*peer{r.worker(), r.worker(), r.worker()}
	p := r.dial()
	for i := range 9 {
		p.ask("Placement.Resolve", "room", fmt.Sprint(i))
	}
	for _, w := range workers {
		for range 3 {
			w.answer(w.next(), nil, map[string]any{"pid": "x"})
		}
	}
	for range 9 {
		p.succeeds()
	}
}

// Another daemon owns half of the rooms, and this one says which.
func TestTwoDaemons(t *testing.T) {
	s := newSite(t)
	a, b, c := s.start("a:1"), s.start("b:1"), s.start("")
	for _, d := range []*placed{a, b, c} {
		d.sees(2)
	}
	watch := c.dial()
	watch.table("Placement.Watch", options{"events": []string{"pid_cached"}})
	wa, wb := a.worker(), b.worker()
	for _, d := range []*placed{a, b, c} {
		d.serves(a)
		d.serves(b)
	}
	pa, pc := a.dial(), c.dial()
	remote := 0
	for i := range 20 {
		room := fmt.Sprint(i)
		where := pc.table("Placement.Resolve", "room", room)
		if where["locality"] != "remote" || where["pid"] != "" {
			t.Fatalf("who only resolves says %v", where)
		}
		if where["authority"] == "a:1" {
			a.activate(wa, room)
			continue
		}
		remote++
		b.activate(wb, room)
		own := b.dial().table("Placement.Resolve", "room", room)
		// Seed 004-24.
		if got := pc.table("Placement.Resolve", "room", room, options{"pid": true}); got["locality"] != "remote" || got["authority"] != "b:1" ||
			got["pid"] != own["pid"] || own["pid"] == "" || got["token"] != own["token"] || got["version"] != own["version"] {
			t.Errorf("room %s: asked for its pid, who only resolves says %v, and its host %v", room, got, own)
		}
		// Seed 004-22.
		if got := pa.table("Placement.Resolve", "room", room); got["authority"] != "b:1" || got["locality"] != "remote" {
			t.Errorf("room %s: %v", room, got)
		}
	}
	for range remote { // the read events are told
		var notice []any
		// Seed 004-21.
		if err := watch.dec.Decode(&notice); err != nil || notice[1] != "Placement.Event" || !strings.Contains(fmt.Sprint(notice[2]), "pid_cached") {
			t.Fatalf("told is %v, %v", notice, err)
		}
	}
	if remote == 0 || remote == 20 {
		t.Errorf("%d of 20 rooms are the other's", remote)
	}
	e := pc.fails(wire.CodePlacementNotReady, "Placement.Register", []string{"room"})
	if state, _ := e.Detail("state"); state != "client" {
		t.Errorf("who only resolves says %v", e)
	}
	// A polite stop has everything passivated while connections still work.
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		b.stopPlace()
	}()
	for range remote {
		q := wb.next()
		if q.method != "Passivate" {
			t.Fatalf("asked for %s", q.method)
		}
		wb.answer(q, nil, nil)
	}
	<-stopped
	pb := b.dial()
	e = pb.fails(wire.CodePlacementNotReady, "Placement.Resolve", "room", "1")
	if state, _ := e.Detail("state"); state != "stopped" {
		t.Errorf("the one that has stopped says %v", e)
	}
	a.sees(1)
	for i := range 20 {
		pa.ask("Placement.Resolve", "room", fmt.Sprint(i))
	}
	for range remote {
		wa.answer(wa.next(), nil, map[string]any{"pid": "x"})
	}
	for range 20 {
		pa.succeeds()
	}
}

// Who waits for another host is told what for.
func TestPlacementPending(t *testing.T) {
	s := newSite(t)
	r := s.start("a:1").sees(1)
	w, p := r.worker(), r.dial()
	p.ask("Placement.Resolve", "room", "1", options{"wait_ms": 0})
	p.wantError(p.receive(), wire.CodePlacementPending) // seeds 004-48 and 004-61
	a := w.want("Activate", "1")
	p.fails(wire.CodePlacementPending, "Placement.Resolve", "room", "1", options{"wait_ms": 1})
	w.answer(a, nil, map[string]any{"pid": "x"})

	other := lock.Request{Op: lock.Acquire, Tenant: "placement", Owner: "b", Key: "activation/room/2", LeaseID: lock.NewLeaseID(), TTLMS: 600_000}
	if _, err := s.locks.Do(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the store has answered in time", func() bool {
		got := p.call("Placement.Resolve", "room", "2", options{"wait_ms": 1})
		if got.err != nil && got.err.Code == wire.CodePlacementPending {
			return false
		}
		p.wantError(got, wire.CodeLockHeld)
		owner, _ := got.err.Detail("owner")
		return owner == "b"
	})
}

func TestPlacementEvents(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w, some, all := r.worker(), r.dial(), r.dial()
	if got := some.table("Placement.Watch"); got["authority"] != "a:1" || got["state"] != "member" {
		t.Errorf("watching %v", got)
	}
	all.table("Placement.Watch", options{"events": []string{"resolved", "activated", "passivated"}})
	a := r.activate(w, "1")
	_ = w.Close()
	// Seed 004-34.
	for who, wants := range map[*peer][]string{some: {"activated", "passivated"}, all: {"resolved", "activated", "passivated"}} {
		for _, want := range wants {
			var notice struct {
				_msgpack struct{} `msgpack:",as_array"` //nolint:unused // how the library is told
				Type     int
				Method   string
				Params   []map[string]any
			}
			must.Succeed(t, who.dec.Decode(&notice))
			// Seeds 004-47 and 004-64.
			if notice.Type != 2 || notice.Method != "Placement.Event" || notice.Params[0]["event"] != want || notice.Params[0]["identity"] != "1" {
				t.Errorf("told is %+v, want %s", notice, want)
			}
			if token, _ := asInt(notice.Params[0]["token"]); want != "resolved" && int64(token) != a.params.Token {
				t.Errorf("%s has the token %d", want, token)
			}
			if at, err := asInt(notice.Params[0]["observed_ms"]); err != nil || at < 1 { // seeds 004-3 and 004-57
				t.Errorf("%s was observed at %d (%v)", want, at, err)
			}
		}
	}
	r.stopPlace()
	var notice []any
	if err := some.dec.Decode(&notice); err != nil || notice[1] != "Placement.WatchEnded" || !strings.Contains(fmt.Sprint(notice[2]), "stopping") {
		t.Errorf("at the end is told %v, %v", notice, err)
	}
}

func TestPlacementSnapshot(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w, p := r.worker(), r.dial()
	for i := range 5 {
		r.activate(w, fmt.Sprint(i))
	}
	var rooms []string
	for after := ""; ; {
		page := p.table("Placement.Snapshot", options{"limit": 2, "after": after})
		// Seed 004-43.
		if page["state"] != "member" || page["authority"] != "a:1" || fmt.Sprint(page["kinds"]) != "[room]" || fmt.Sprint(page["activations_total"]) != "5" || page["key"] != nil {
			t.Fatalf("the page is %v", page)
		}
		activations := page["activations"].([]any)
		for _, one := range activations {
			a := one.(map[string]any)
			rooms = append(rooms, a["identity"].(string))
			after = a["kind"].(string) + "/" + a["identity"].(string)
			if a["active"] != true || a["pid"] != "p-"+a["identity"].(string) {
				t.Errorf("shown is %v", a)
			}
		}
		if len(activations) < 2 {
			break
		}
	}
	if !slices.Equal(rooms, []string{"0", "1", "2", "3", "4"}) {
		t.Errorf("shown are %v", rooms)
	}
	one := p.table("Placement.Snapshot", options{"kind": "room", "identity": "3"})
	key := one["key"].(map[string]any)
	if record := key["record"].(map[string]any); key["authority"] != "a:1" || key["locality"] != "local" || record["owner"] != "a:1" || record["pid"] != "p-3" || len(one["activations"].([]any)) != 1 {
		t.Errorf("one room is %v", one)
	}
	none := p.table("Placement.Snapshot", options{"kind": "room", "identity": "x", "limit": 0})
	if key := none["key"].(map[string]any); key["record"] != nil || len(none["activations"].([]any)) != 0 {
		t.Errorf("a room that nobody has asked for is %v", none)
	}
}

func TestPlacementRefusals(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	p := r.dial()
	many := make([]string, maxKinds+1)
	for i := range many {
		many[i] = fmt.Sprint("k", i)
	}
	for _, bad := range []struct {
		method string
		params []any
		says   string
	}{
		{"Placement.Resolve", []any{"room"}, "a kind and an identity"},
		{"Placement.Resolve", []any{"a/b", "1"}, "slash"},
		{"Placement.Resolve", []any{"room", ""}, "identity has 0 bytes"},
		{"Placement.Resolve", []any{"room", 5}, "parameter 2"},
		{"Placement.Resolve", []any{"room", "1", options{"wait_ms": -1}}, "0 to 600000"},
		{"Placement.Resolve", []any{"room", "1", options{"wait": 1}}, "wait_ms"},
		{"Placement.Check", []any{"room", "1"}, "parameter 3"},
		{"Placement.Check", []any{"room", "1", 1, 2}, "too many"},
		{"Placement.Register", []any{}, "parameter 1"},
		{"Placement.Register", []any{"room"}, "array"},
		{"Placement.Register", []any{[]string{}}, "1 to 64"},
		{"Placement.Register", []any{many}, "1 to 64"},
		{"Placement.Register", []any{[]string{"a/b"}}, "slash"},
		{"Placement.Register", []any{[]any{5}}, "string"},
		{"Placement.Unregister", []any{1}, "too many"},
		{"Placement.Watch", []any{options{"events": []string{"resolved", "no"}}}, "lock_denied"},
		{"Placement.Watch", []any{options{"events": "resolved"}}, "array"},
		{"Placement.Snapshot", []any{options{"limit": 1001}}, "0 to 1000"},
		{"Placement.Snapshot", []any{options{"kind": "room"}}, "identity has 0 bytes"},
	} {
		// Seed 004-6.
		if e := p.fails(wire.CodeInvalidParams, bad.method, bad.params...); !strings.Contains(e.Error(), bad.says) {
			t.Errorf("%s%v: %v, which does not say %q", bad.method, bad.params, e, bad.says)
		}
	}
	p.alive()
}

func TestPlacementOff(t *testing.T) {
	p := newRig(t).start().dial()
	for _, method := range []string{"Resolve", "Check", "Register", "Unregister", "Watch", "Snapshot"} {
		e := p.fails(wire.CodePlacementNotReady, "Placement."+method)
		if state, _ := e.Detail("state"); state != "off" || !strings.Contains(e.Error(), "placement_authority") {
			t.Errorf("%s: %v", method, e)
		}
	}
}
