package placement

import (
	"fmt"
	"testing"
	"time"
)

// far is a resolution of an actor of another host, and the record that its owner has.
func (d *desk) far() (Resolution, Record) {
	d.Helper()
	d.member(others(d.T, false)...)
	r, err := d.resolve()
	if err != nil || r.Locality != Remote || r.PID != "" {
		d.Fatalf("resolved to %+v, %v", r, err)
	}
	d.core.DrainEvents()
	return r, Record{Owner: Member{r.Authority, 3}, PID: "p", Version: 4, Token: 9, Snapshot: []byte("s")}
}

// cacheEvents are the events since the last call, each with its reason.
func (d *desk) cacheEvents() string {
	said := ""
	for _, e := range d.core.DrainEvents() {
		if e.Kind == PIDCached || e.Kind == PIDDropped {
			said += fmt.Sprintf("%s %s %s %d %s;", e.Kind, e.Authority, e.PID, e.Token, e.Reason)
		}
	}
	return said
}

// PL-C11: what a record says of a remote actor is remembered until its time, and told of.
func TestPIDIsRemembered(t *testing.T) {
	d := newDesk(t)
	r, record := d.far()
	if _, ok := d.core.PID(r, d.now); ok {
		t.Error("it is known before it was read")
	}
	until := d.now.Boot + time.Second
	if got := d.core.RememberPID(r, record, until, d.now); got.PID != "p" || got.Version != 4 || got.Token != 9 || got.Authority != r.Authority {
		t.Errorf("read is %+v", got)
	}
	d.now.Boot = until - 1
	if got, ok := d.core.PID(r, d.now); !ok || got.PID != "p" || got.Version != 4 || got.Token != 9 {
		t.Errorf("remembered is %+v, %v", got, ok)
	}
	d.core.RememberPID(r, record, until+1, d.now) // the same once more
	if got, want := d.cacheEvents(), fmt.Sprintf("pid_cached %s p 9 ;", r.Authority); got != want {
		t.Errorf("told is %s, want %s", got, want)
	}
	d.now.Boot = until + 1
	if got, ok := d.core.PID(r, d.now); ok || got.PID != "" {
		t.Errorf("after its time it is %+v", got)
	}
	if got, want := d.cacheEvents(), fmt.Sprintf("pid_dropped %s p 9 %s;", r.Authority, PIDIsOld); got != want {
		t.Errorf("told is %s, want %s", got, want)
	}
	d.core.RememberPID(r, record, d.now.Boot+time.Second, d.now)
	d.cacheEvents()
	d.now.Boot += time.Second
	d.take(d.core.Tick(d.now)) // no caller asks
	if got, want := d.cacheEvents(), fmt.Sprintf("pid_dropped %s p 9 %s;", r.Authority, PIDIsOld); got != want {
		t.Errorf("told is %s, want %s", got, want)
	}
	local := Resolution{Key: room, Authority: "me:1", Locality: Local, PID: "own"}
	if got, ok := d.core.PID(local, d.now); !ok || got != local {
		t.Errorf("a local one becomes %+v", got)
	}
}

// A record that is not of the present membership of the actor's authority says no pid.
func TestPIDOfNoOne(t *testing.T) {
	for name, edit := range map[string]func(*Record){
		"another owner":      func(r *Record) { r.Owner.Authority = "other:9" },
		"another member":     func(r *Record) { r.Owner = Member{"me:1", 7} },
		"another membership": func(r *Record) { r.Owner.Token = 2 },
		"no owner":           func(r *Record) { r.Owner, r.PID = Member{}, "" },
		"being activated":    func(r *Record) { r.PID = "" },
	} {
		d := newDesk(t)
		r, record := d.far()
		until := d.now.Boot + time.Second
		d.core.RememberPID(r, record, until, d.now)
		d.cacheEvents()
		edit(&record)
		if got := d.core.RememberPID(r, record, until, d.now); got != r {
			t.Errorf("%s: it is %+v", name, got)
		}
		if got, ok := d.core.PID(r, d.now); ok {
			t.Errorf("%s: remembered is %+v", name, got)
		}
		if got, want := d.cacheEvents(), fmt.Sprintf("pid_dropped %s p 9 %s;", r.Authority, PIDHasEnded); got != want {
			t.Errorf("%s: told is %s, want %s", name, got, want)
		}
	}
}

// With the topology the memory of members that have gone goes too.
func TestPIDsGoWithTheTopology(t *testing.T) {
	for reason, change := range map[string]func(d *desk, authority string){
		OtherAuthority: func(d *desk, _ string) { d.topology(others(d.T, true)...) },
		OwnerHasLeft: func(d *desk, authority string) {
			d.take(d.core.UpdateTopology([]Host{serving("me:1", 7), serving(authority, 4)}, d.now))
		},
		NoAuthority: func(d *desk, _ string) { d.take(d.core.UpdateTopology([]Host{{Member: Member{"me:1", 7}}}, d.now)) },
	} {
		d := newDesk(t)
		r, record := d.far()
		d.core.RememberPID(r, record, d.now.Boot+time.Second, d.now)
		d.cacheEvents()
		change(d, r.Authority)
		if got, want := d.cacheEvents(), fmt.Sprintf("pid_dropped %s p 9 %s;", r.Authority, reason); got != want {
			t.Errorf("told is %s, want %s", got, want)
		}
		if got := d.core.RememberPID(r, record, d.now.Boot+time.Second, d.now); got != r { // it was read before
			t.Errorf("%s: read is %+v", reason, got)
		}
	}
}

// No more pids are remembered than there may be: the first one read goes.
func TestPIDsAreBounded(t *testing.T) {
	d := newDesk(t)
	d.far()
	first := Key{}
	for i, n := 0, 0; n <= MaxPIDs; i++ {
		key := Key{"room", fmt.Sprint(i)}
		r, ok := d.core.Known(key, d.now)
		if !ok {
			continue // its own
		}
		if n++; n == 1 {
			first = key
		}
		d.core.RememberPID(r, Record{Owner: Member{r.Authority, 3}, PID: "p", Token: 9}, d.now.Boot+time.Second, d.now)
	}
	r, _ := d.core.Known(first, d.now)
	if _, ok := d.core.PID(r, d.now); ok || len(d.core.pids.known) != MaxPIDs || len(d.core.pids.order) != MaxPIDs {
		t.Errorf("%d are remembered, the first among them: %v", len(d.core.pids.known), ok)
	}
}

// Reads at the same time end in any order: a read that began earlier does not replace newer
// knowledge, and does not live longer behind a later one.
func TestPIDsOfSlowReads(t *testing.T) {
	d := newDesk(t)
	r, record := d.far()
	until := d.now.Boot + time.Second
	newer := record
	newer.PID, newer.Token = "q", record.Token+1
	d.core.RememberPID(r, newer, until, d.now)
	if got := d.core.RememberPID(r, record, until-1, d.now); got.PID != "q" || got.Token != newer.Token {
		t.Errorf("an earlier read answers %+v", got)
	}
	if got, want := d.cacheEvents(), fmt.Sprintf("pid_cached %s q 10 ;", r.Authority); got != want {
		t.Errorf("told is %s, want %s", got, want)
	}

	other := r
	for n := 0; other.Key == r.Key || d.core.topology.Authority(other.Key) != r.Authority; n++ {
		other.Key.Identity = fmt.Sprint("other", n)
	}
	d.core.RememberPID(other, record, until-1, d.now)
	d.now.Boot = until - 1
	if got, ok := d.core.PID(other, d.now); ok || got.PID != "" {
		t.Errorf("after its time it is %+v", got)
	}
	if got, ok := d.core.PID(r, d.now); !ok || got.PID != "q" {
		t.Errorf("the other one is %+v, %v", got, ok)
	}
}
