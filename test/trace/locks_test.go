package trace

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func msec(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// locksExample is a lock that a has, renews and releases, and then b. The store falls back to
// the time of a. Then c, who has given up, is granted it, and after an hour e.
func locksExample() Locks {
	const hour = 3_600_000
	return Locks{
		Memory: 1,
		Steps: []LockStep{
			{Do: "Ask", At: msec(1), Host: "a", Op: "acquire", Number: "a"},
			{Do: "Look", At: msec(2), StoreMS: 1002},
			{Do: "Commit", At: msec(3), StoreMS: 1003, Host: "a", Op: "acquire", Number: "a", Sent: msec(1), Token: 1, TermMS: 100},
			{Do: "Again", At: msec(10), Host: "a", Op: "acquire", Number: "a"},
			{Do: "Repeat", At: msec(13), StoreMS: 1013, Host: "a", Op: "acquire", Number: "a", Sent: msec(10), Token: 1, LeftMS: 90},
			{Do: "Receive", At: msec(15), Host: "a", Op: "acquire", Number: "a", Sent: msec(10)},
			{Do: "Ask", At: msec(30), Host: "a", Op: "renew", Number: "a2", Token: 1},
			{Do: "Commit", At: msec(40), StoreMS: 1040, Host: "a", Op: "renew", Number: "a2", Sent: msec(30), Token: 1, TermMS: 100},
			{Do: "Receive", At: msec(45), Host: "a", Op: "renew", Number: "a2", Sent: msec(30)},
			{Do: "Ask", At: msec(60), Host: "a", Op: "release", Number: "a3", Token: 1},
			{Do: "Commit", At: msec(70), StoreMS: 1070, Host: "a", Op: "release", Number: "a3", Sent: msec(60), Token: 1},
			{Do: "Ask", At: msec(80), Host: "b", Op: "acquire", Number: "b"},
			{Do: "Commit", At: msec(90), StoreMS: 1090, Host: "b", Op: "acquire", Number: "b", Sent: msec(80), Token: 2, TermMS: 100},
			{Do: "Receive", At: msec(95), Host: "b", Op: "acquire", Number: "b", Sent: msec(80)},
			{Do: "Ask", At: msec(100), Host: "c", Op: "acquire", Number: "c"},
			{Do: "GiveUp", At: msec(110), Host: "c", Op: "acquire", Number: "c"},
			{Do: "Discard", At: msec(111), Host: "c", Op: "release", Number: "c2"},
			{Do: "Look", At: msec(120), StoreMS: 1120, Token: 2, Active: true, EndMS: 1190},
			{Do: "Forget", At: msec(130), StoreMS: 1130, Token: 1, Active: true, EndMS: 1140, Floor: 1000, FenceMS: 1200},
			{Do: "Commit", At: msec(260), StoreMS: 1260, Host: "c", Op: "acquire", Number: "c", Sent: msec(100), Token: 1001, TermMS: 100},
			{Do: "Commit", At: msec(270), StoreMS: 1270, Host: "c", Op: "release", Number: "c2", Sent: msec(111), Token: 1001},
			{Do: "Delete", At: msec(hour), StoreMS: 1000 + hour, Floor: 1001},
			{Do: "Ask", At: msec(hour), Host: "e", Op: "acquire", Number: "e"},
			{Do: "Commit", At: msec(hour), StoreMS: 1000 + hour, Host: "e", Op: "acquire", Number: "e", Sent: msec(hour), Token: 1002, TermMS: 100},
		},
		Relied: []Reliance{{"a", 1, msec(15), msec(60)}, {"b", 2, msec(95), msec(180)}},
	}
}

// at is the place of the nth step of an action, from 0.
func (t Locks) at(do string, n int) int {
	return nth(t.Steps, n, func(s LockStep) bool { return s.Do == do })
}

func (t Locks) step(do string, n int) *LockStep { return &t.Steps[t.at(do, n)] }

// without drops the nth step of an action.
func (t *Locks) without(do string, n int) {
	at := t.at(do, n)
	t.Steps = slices.Delete(t.Steps, at, at+1)
}

// lookAfterFence has the store show the floor when the fence is over, before it grants again.
func (t *Locks) lookAfterFence(floor int64) {
	t.Steps = slices.Insert(t.Steps, t.at("Commit", 4), LockStep{Do: "Look", At: msec(210), StoreMS: 1210, Token: 1, Floor: floor})
}

// Where the floor is the time, a token from the millisecond of the loss is above the floor of the
// fence. It is below that of the first grant, which comes after the fence.
func TestLocksFloorRisesInTheFence(t *testing.T) {
	x := locksExample()
	x.step("Forget", 0).Floor = 1
	x.lookAfterFence(1000)
	if r := x.Check(); len(r.Broken) > 0 || r.Grants != 7 {
		t.Errorf("without fault: %+v", r)
	}
	x = locksExample()
	f := x.step("Forget", 0)
	f.Floor, f.StoreMS, f.Active = 1, f.FenceMS, false
	if r := x.Check(); len(r.Broken) == 0 || !strings.Contains(r.Broken[0], "Forget: tokens go on above 1, and 2 was granted") {
		t.Errorf("a floor that is too low when the fence is over at once: %+v", r)
	}
}

func TestLocks(t *testing.T) {
	if r := locksExample().Check(); len(r.Broken) > 0 || r.Grants != 7 {
		t.Errorf("without fault: %+v", r)
	}
	eachGuard(t, []string{"locks.go"}, []guardCase[Locks]{
		{"no such action", "Vanish is no action", func(x *Locks) { x.step("Look", 0).Do = "Vanish" }},
		{"the hosts' time goes back", "Tick: Commit comes at 2ms", func(x *Locks) { x.step("Commit", 0).At, x.step("Look", 0).At = msec(2), msec(3) }},
		{"the store's time goes back", "Tick: Commit comes at 1", func(x *Locks) { x.step("Commit", 0).StoreMS = 1 }},
		{"asks for what it has", "Ask: a asks for the lock, and has token 1", func(x *Locks) { x.step("Ask", 3).Host = "a" }},
		{"renews what another has", "Ask: b is to renew token 1", func(x *Locks) { x.step("Ask", 1).Host = "b" }},
		{"a number twice", "Ask: b asks anew with the number a", func(x *Locks) { x.step("Ask", 3).Number = "a" }},
		{"repeats what it did not ask for", "Again: the acquire with number x", func(x *Locks) { x.step("Again", 0).Number = "x" }},
		{"gives up twice", "GiveUp: c waits for no answer", func(x *Locks) { x.Steps = slices.Insert(x.Steps, 15, *x.step("GiveUp", 0)) }},
		{"discards nothing", "Discard: d has not asked", func(x *Locks) { x.step("Discard", 0).Host = "d" }},
		{"an answer after giving up", "Receive: b waits for no answer", func(x *Locks) { x.step("Receive", 2).Number = "x" }},
		{"an answer that was not given", "Receive: b has an answer to request b", func(x *Locks) { x.without("Commit", 3) }},
		{"a request that nobody sent", "Commit: nobody has sent the acquire with number b at 81ms", func(x *Locks) { x.step("Commit", 3).Sent = msec(81) }},
		{"renewed after the end", "Decided: the store takes a renew of token 1", func(x *Locks) { s := x.step("Commit", 1); s.StoreMS = 1103; x.Steps = x.Steps[:8] }},
		{"another's lease is released", "Meant: the store takes a release of token 1,", func(x *Locks) {
			x.Steps = slices.Insert(x.Steps, 13, *x.step("Commit", 2))
			x.Steps[13].At, x.Steps[13].StoreMS = msec(91), 1091
		}},
		{"granted while it is held", "Decided: token 2 is granted while token 1 has 50 ms left", func(x *Locks) { x.without("Commit", 2) }},
		{"granted twice", "Decided: the acquire with number c is granted twice", func(x *Locks) {
			x.Steps = slices.Insert(x.Steps, 21, *x.step("Commit", 4))
			x.Steps[21].At, x.Steps[21].StoreMS, x.Steps[21].Token = msec(280), 1280, 1002
		}},
		{"renewed twice", "Once: the renew with number a2 is carried out again, with fewer than 1 others", func(x *Locks) {
			again := *x.step("Commit", 1)
			again.At, again.StoreMS = msec(50), 1050
			x.Steps = slices.Insert(x.Steps, 9, again)
		}},
		{"granted in the fence", "Decided: token 1001 is granted 1 ms before", func(x *Locks) { x.step("Commit", 4).StoreMS = 1199 }},
		{"a token skipped", "Token: token 3 is granted, and the next one is 2", func(x *Locks) { x.step("Commit", 3).Token = 3 }},
		{"a token again", "TokensRise: token 2 is granted after token 2", func(x *Locks) { x.step("Forget", 0).Floor = 1; x.step("Commit", 4).Token = 2 }},
		{"a repetition that nobody sent", "Repeat: nobody has sent request a at 9ms", func(x *Locks) { x.step("Repeat", 0).Sent = msec(9) }},
		{"a repetition after the end", "Repeat: the store shows token 1 as held", func(x *Locks) { s := x.step("Repeat", 0); s.StoreMS = 1103 }},
		{"a repetition of another's lease", "Repeat: the store shows token 2 to a", func(x *Locks) { x.step("Repeat", 0).Token = 2 }},
		{"too much is left", "Repeat: the store says that 91 ms are left of token 1, which has 90", func(x *Locks) { x.step("Repeat", 0).LeftMS = 91 }},
		{"the store shows another record", "Look: the store shows token 1, and the record has 2", func(x *Locks) { x.step("Look", 1).Token = 1 }},
		{"the store shows another end", "Look: the store shows token 2 as active: true, until 1191", func(x *Locks) { x.step("Look", 1).EndMS = 1191 }},
		{"the floor sinks", "Look: the floor is 1000, after 1001", func(x *Locks) {
			x.Steps = append(x.Steps, LockStep{Do: "Look", At: msec(3_600_000), Token: 1002, Active: true, EndMS: 4_601_100 - 1_000_000, Floor: 1000})
		}},
		{"a held lock is deleted", "Delete: the record of token 1001 is deleted, and its lease", func(x *Locks) { x.without("Commit", 5); x.step("Delete", 0).StoreMS = 1300 }},
		{"the floor forgets a token", "Delete: the record of token 1001 is deleted, and the floor is 1000", func(x *Locks) { x.step("Delete", 0).Floor = 1000 }},
		{"falls back to what never was", "Forget: the store falls back to token 1, active: true, which", func(x *Locks) { x.step("Forget", 0).EndMS = 1141 }},
		{"the fence is too short", "Forget: the fence ends at 1189, and a lease that may be missing at 1190", func(x *Locks) { x.step("Forget", 0).FenceMS = 1189 }},
		{"the floor of a life is too low", "Look: tokens go on above 1, and 2 was granted", func(x *Locks) {
			x.step("Forget", 0).Floor = 1
			x.lookAfterFence(1)
		}},
		{"relies on another's lease", "Believes: b relies on token 1", func(x *Locks) { x.Relied[0].Host = "b" }},
		{"relies before it knows", "Receive: a relies on token 1 from 14ms", func(x *Locks) { x.Relied[0].From = msec(14) }},
		{"counts from the answer", "Until: b relies on token 2 until 181ms, and may until 180ms", func(x *Locks) { x.Relied[1].Until = msec(181) }},
		{"relies after the release", "Ask: a relies on token 1 until 61ms, and sent the release at 60ms", func(x *Locks) { x.Relied[0].Until = msec(61) }},
		{"two rely on it", "OneHolder: tokens 1 and 2 are relied on at 95ms", func(x *Locks) { x.Relied[0].Until = msec(96) }},
	}, locksExample, func(x Locks) Result { return x.Check() })
}
