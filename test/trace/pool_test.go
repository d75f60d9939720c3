package trace

import (
	"slices"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
)

var low, high = snowflake.Slot{Start: 0, End: 4}, snowflake.Slot{Start: 4, End: 8}

// poolExample is a, which extends its lease and releases it, and b, which notices that its folder
// is lost, goes on in another, is killed, and begins anew. b is granted a's slot. The store falls
// back; b hears of it. a gives a request up, and a release of a's is refused. b hears nothing of its
// own. The machine of a boots.
func poolExample() Pool {
	return Pool{Steps: []PoolStep{
		{Do: "Start", Proc: "a", Folder: "A", Machine: "m", MS: 1000},
		{Do: "Start", Proc: "b", Folder: "B", Machine: "n", MS: 1000},
		{Do: "Grant", Proc: "a", Lease: "one", Request: "r1", Slot: low, Created: 1000, Expired: 1100, Until: 1200},
		{Do: "Receive", Proc: "a", Lease: "one", Request: "r1"},
		{Do: "Emit", Proc: "a", ID: 100, MS: 1000, Low: 0},
		{Do: "Emit", Proc: "a", ID: 501, MS: 1050, Low: 1, From: 5},
		{Do: "Extend", Proc: "a", Lease: "one", MS: 1060, Expired: 1160, Until: 1260},
		{Do: "Extended", Proc: "a", Lease: "one", Expired: 1160, Until: 1260},
		{Do: "Grant", Proc: "b", Lease: "two", Request: "r2", Slot: high, Created: 1000, Expired: 1100, Until: 1200},
		{Do: "Receive", Proc: "b", Lease: "two", Request: "r2"},
		{Do: "MoveAway"},
		{Do: "Keep", Proc: "b", Lease: "two"},
		{Do: "Emit", Proc: "b", ID: 1504, MS: 1150, Low: 4, Cached: true, From: 12},
		{Do: "Kill", Proc: "b"},
		{Do: "Start", Proc: "b2", Folder: "B", Machine: "n", MS: 1151, Leases: []string{"two"}},
		{Do: "Seal", Proc: "a", Lease: "one"},
		{Do: "Forget", Proc: "a", Lease: "one"},
		{Do: "Send", Proc: "a", Lease: "one", MS: 1050},
		{Do: "TakeBack", Lease: "one", MS: 1050},
		{Do: "Released", Proc: "a", Lease: "one"},
		{Do: "Grant", Proc: "b2", Lease: "three", Request: "r3", Slot: low, Created: 1051, Expired: 1151, Until: 1251},
		{Do: "Receive", Proc: "b2", Lease: "three", Request: "r3"},
		{Do: "Restore"},
		{Do: "Verify", Proc: "b2", Lease: "three"},
		{Do: "Grant", Proc: "a", Lease: "four", Request: "r4", Slot: low, Created: 1251, Expired: 1351, Until: 1451},
		{Do: "GiveUp", Proc: "a", Request: "r4"},
		{Do: "Grant", Proc: "a", Lease: "five", Request: "r5", Slot: high, Created: 1251, Expired: 1351, Until: 1451},
		{Do: "Receive", Proc: "a", Lease: "five", Request: "r5"},
		{Do: "Seal", Proc: "a", Lease: "five"},
		{Do: "Forget", Proc: "a", Lease: "five"},
		{Do: "Send", Proc: "a", Lease: "five", MS: 1251},
		{Do: "Refused", Proc: "a", Lease: "five"},
		{Do: "Seal", Proc: "b2", Lease: "two"},
		{Do: "Forget", Proc: "b2", Lease: "two"},
		{Do: "Send", Proc: "b2", Lease: "two", MS: 1199},
		{Do: "Unanswered", Proc: "b2", Lease: "two"},
		{Do: "Kill", Proc: "a"},
		{Do: "Start", Proc: "a2", Folder: "A", Machine: "m", MS: 1252, Leases: []string{"five"}},
		{Do: "Kill", Proc: "a2"},
		{Do: "Boot", Machine: "m"},
		{Do: "Start", Proc: "a3", Folder: "A", Machine: "m", MS: 1252},
	}}
}

// at is the place of the nth step of an action, from 0.
func (t Pool) at(do string, n int) int {
	return nth(t.Steps, n, func(s PoolStep) bool { return s.Do == do })
}

func (t Pool) step(do string, n int) *PoolStep { return &t.Steps[t.at(do, n)] }

// then puts steps after the nth of an action.
func (t *Pool) then(do string, n int, steps ...PoolStep) {
	t.Steps = slices.Insert(t.Steps, t.at(do, n)+1, steps...)
}

// without drops the nth step of an action.
func (t *Pool) without(do string, n int) {
	at := t.at(do, n)
	t.Steps = slices.Delete(t.Steps, at, at+1)
}

func TestPool(t *testing.T) {
	if r := poolExample().Check(); len(r.Broken) > 0 || r.Grants != 5 || r.Emits != 3 || r.Pairs != 4 {
		t.Errorf("without fault: %+v", r)
	}
	cases := slices.Concat(poolStoreCases, poolReleaseCases, poolStartCases, poolEmitCases)
	eachGuard(t, []string{"pool.go", "pool_folders.go"}, cases, poolExample, func(x Pool) Result { return x.Check() })
}

var poolStoreCases = []guardCase[Pool]{
	{"no such action", "Vanish is no action", func(x *Pool) { x.step("Verify", 0).Do = "Vanish" }},
	{"a lease that nobody granted", "Verify: Verify", func(x *Pool) {
		x.step("Verify", 0).Proc, x.step("Verify", 0).Lease = "Verify", "six"
	}},
	{"granted before the fence ends", "Restore: four is granted 1 ms before", func(x *Pool) { x.step("Grant", 3).Created = 1250 }},
	{"granted while another is reserved", "Free: three is granted at 1050, and one, created 1000, ends at 1051", func(x *Pool) { x.step("Grant", 2).Created = 1050 }},
	{"the answer to another's request", "Receive: b takes up two, which was granted to request r2", func(x *Pool) { x.step("Grant", 1).Proc = "a" }},
	{"two use one lease", "OneUser: a and b use two", func(x *Pool) {
		x.then("Receive", 1, PoolStep{Do: "Grant", Proc: "a", Lease: "two", Request: "r2", Slot: snowflake.Slot{Start: 8, End: 9}}, PoolStep{Do: "Receive", Proc: "a", Lease: "two", Request: "r2"})
	}},
	{"gives up what it did not ask", "GiveUp: a waits for no answer to r9", func(x *Pool) { x.step("GiveUp", 0).Request = "r9" }},
	{"an ended lease is extended", "Extend: one is extended at 1100", func(x *Pool) { x.step("Extend", 0).MS = 1100 }},
	{"extended before the fence ends", "Restore: one is extended 140 ms before", func(x *Pool) {
		x.then("Emit", 1, PoolStep{Do: "Restore"})
	}},
	{"extended while another is reserved", "OthersEnded: one is extended at 1060, and zero ends at 1061", func(x *Pool) {
		x.then("Start", 1, PoolStep{Do: "Grant", Lease: "zero", Slot: low, Created: 1061, Expired: 1061, Until: 1061})
		x.step("Grant", 1).Until = 1061
	}},
	{"hears of a longer extension", "Extended: a hears that one ends at 1161", func(x *Pool) { x.step("Extended", 0).Expired = 1161 }},
	{"hears that a lease is lost which is not", "Verify: b2 hears that three is lost", func(x *Pool) { x.without("Restore", 0) }},
	{"keeps what it has not", "Keep: b keeps one", func(x *Pool) { x.step("Keep", 0).Lease = "one" }},
}

var poolReleaseCases = []guardCase[Pool]{
	{"cut off from what it has not", "Seal: a is cut off from two", func(x *Pool) { x.step("Seal", 0).Lease = "two" }},
	{"forgets what is not in its file", "Forget: a forgets three", func(x *Pool) { x.step("Forget", 0).Lease = "three" }},
	{"sent before it is cut off", "Send: a sends the release of one, from which", func(x *Pool) { x.without("Seal", 0) }},
	{"sent again", "Send: a sends the release of one again", func(x *Pool) { x.then("Send", 0, *x.step("Send", 0)) }},
	{"a time before the last ID", "LastTimestamp: a sends the release of one with 1049, and has embedded 1050", func(x *Pool) { x.step("Send", 0).MS = 1049 }},
	{"sent while another uses it", "ReleasedIsGone: Send: a uses one", func(x *Pool) {
		x.then("Seal", 0, *x.step("Receive", 0))
	}},
	{"sent before the file forgets it", "ReleasedIsGone: Send: folder A lists one", func(x *Pool) { x.without("Forget", 0) }},
	{"taken back with another time", "TakeBack: the store takes one back with 1051", func(x *Pool) { x.step("TakeBack", 0).MS = 1051 }},
	{"hears of a release that did not happen", "Released: a hears that one was released", func(x *Pool) { x.without("TakeBack", 0) }},
	{"puts back what it uses", `Refused: b2 puts five back, which is ""`, func(x *Pool) { x.step("Refused", 0).Proc = "b2" }},
	{"puts back what was taken back", "Refused: a puts five back, which the store has taken back", func(x *Pool) {
		x.then("Send", 1, PoolStep{Do: "TakeBack", Lease: "five", MS: 1251})
	}},
	{"hears nothing of what it did not send", `Unanswered: b2 hears nothing of its release of two, which is "sealed"`, func(x *Pool) { x.without("Send", 2) }},
}

var poolStartCases = []guardCase[Pool]{
	{"two in one folder", "Locked: b2 starts in B, which b has", func(x *Pool) { x.without("Kill", 0) }},
	{"adopts what nobody left there", "Adoptable: a2 adopts one", func(x *Pool) { x.step("Start", 3).Leases = []string{"one"} }},
	{"adopts after a boot", "Adoptable: a3 adopts five from A, which another boot has left", func(x *Pool) { x.step("Start", 4).Leases = []string{"five"} }},
	{"adopts what another uses", "OneUser: b2 and a use two", func(x *Pool) {
		x.then("Receive", 1, PoolStep{Do: "Receive", Proc: "a", Lease: "two", Request: "r2"})
	}},
	{"adopts what was released", "ReleasedIsGone: a2 adopts five, whose release was sent", func(x *Pool) {
		x.then("Refused", 0, PoolStep{Do: "Send", Proc: "a", Lease: "five", MS: 1251})
	}},
	{"adopts with a mark that is too low", "Begin: b2 adopts two with the mark at 1150, and 1150 was embedded", func(x *Pool) { x.step("Start", 2).MS = 1150 }},
	{"killed twice", "Kill: b is killed, and does not run", func(x *Pool) { x.then("Kill", 0, *x.step("Kill", 0)) }},
	{"runs on through a boot", "Boot: m boots, and a2 runs", func(x *Pool) { x.without("Kill", 2) }},
}

var poolEmitCases = []guardCase[Pool]{
	{"does not ascend", "CanMake: a makes ID 100 after 100", func(x *Pool) { x.step("Emit", 1).ID = 100 }},
	{"before the mark", "Begin: a embeds 1000, and began at 1001", func(x *Pool) { x.step("Start", 0).MS = 1001 }},
	{"after the lease", "Regular: a embeds 1100 with the low bits 1", func(x *Pool) { x.step("Emit", 1).MS = 1100 }},
	{"of another's slot", "Cached: b embeds 1150 with the low bits 3", func(x *Pool) { x.step("Emit", 2).Low = 3 }},
	{"after its release was sent", "Send: a embeds 1060 under one, whose release was sent with 1050", func(x *Pool) {
		x.then("Send", 0, PoolStep{Do: "Emit", Proc: "a", ID: 601, MS: 1060, Low: 1, From: 6})
	}},
}

// A regular ID may be made before its lease is kept for fallback, and told of after that.
func TestPoolToldLater(t *testing.T) {
	x := poolExample()
	told := PoolStep{Do: "Emit", Proc: "b", ID: 1000, MS: 1099, Low: 5, From: 10}
	x.then("Keep", 0, told)
	if r := x.Check(); len(r.Broken) > 0 {
		t.Error(r.Broken)
	}
	x.step("Emit", 2).From = x.at("Emit", 2)
	if r := x.Check(); len(r.Broken) != 1 {
		t.Errorf("asked for after that: %q", r.Broken)
	}
}
