package trace

import (
	"testing"
	"time"
)

// placementExample is an actor that a has, and gives up; then b has it, and b's daemon is killed.
// When its membership has ended, c takes over, outrunning d, and a joins again.
func placementExample() Placement {
	steps := []PlaceStep{
		{Do: "Grant", At: msec(2), StoreMS: 1002, Host: "a", Life: 1, TermMS: 100},
		{Do: "Joined", At: msec(3), Host: "a", Life: 1, TermMS: 100, Sent: msec(1)},
		{Do: "Grant", At: msec(4), StoreMS: 1004, Host: "b", Life: 2, TermMS: 100},
		{Do: "Joined", At: msec(5), Host: "b", Life: 2, TermMS: 100, Sent: msec(3)},
		{Do: "Write", At: msec(10), StoreMS: 1010, Host: "a", Life: 1, Version: 1, Token: 1},
		{Do: "Written", At: msec(11), Host: "a", Life: 1, Version: 1, Token: 1},
		{Do: "Activate", At: msec(12), Host: "a", Token: 1},
		{Do: "Check", At: msec(20), Host: "a", Token: 1, Until: msec(50)},
		{Do: "Passivate", At: msec(30), Host: "a", Token: 1},
		{Do: "Stop", At: msec(35), Host: "a", Token: 1},
		{Do: "Remove", At: msec(36), Host: "a", Version: 1, Token: 1},
		{Do: "Remove", At: msec(37), Host: "a", Version: 1, Token: 1, Stored: true},
		{Do: "Leave", At: msec(39), StoreMS: 1039, Host: "a", Life: 1},
		{Do: "Write", At: msec(40), StoreMS: 1040, Host: "b", Life: 2, Version: 2, Token: 2},
		{Do: "Written", At: msec(41), Host: "b", Life: 2, Version: 2, Token: 2},
		{Do: "Activate", At: msec(42), Host: "b", Token: 2},
		{Do: "Check", At: msec(60), Host: "b", Token: 2, Until: msec(100)},
		{Do: "Crash", At: msec(70), Host: "b"},
		{Do: "Grant", At: msec(80), StoreMS: 1080, Host: "c", Life: 3, TermMS: 100},
		{Do: "Joined", At: msec(81), Host: "c", Life: 3, TermMS: 100, Sent: msec(79)},
		{Do: "Grant", At: msec(82), StoreMS: 1082, Host: "d", Life: 4, TermMS: 100},
		{Do: "Joined", At: msec(83), Host: "d", Life: 4, TermMS: 100, Sent: msec(79)},
		{Do: "Write", At: msec(110), StoreMS: 1110, Host: "c", Life: 3, Version: 3, Token: 3},
		{Do: "Write", At: msec(111), StoreMS: 1111, Host: "d", Life: 4, Version: 3, Token: 4},
		{Do: "Written", At: msec(112), Host: "c", Life: 3, Version: 3, Token: 3},
		{Do: "Outrun", At: msec(113), Host: "d", Life: 4, Version: 3, Token: 4},
		{Do: "Activate", At: msec(114), Host: "c", Token: 3},
		{Do: "Check", At: msec(120), Host: "c", Token: 3, Until: msec(160)},
		{Do: "Passivate", At: msec(125), Host: "c", Token: 3},
		{Do: "Remove", At: msec(180), Host: "c", Version: 3, Token: 3},
		{Do: "Die", At: msec(181), Host: "c"},
		{Do: "Grant", At: msec(190), StoreMS: 1190, Host: "a", Life: 5, TermMS: 100},
		{Do: "Joined", At: msec(191), Host: "a", Life: 5, TermMS: 100, Sent: msec(189)},
	}
	for i := range steps {
		steps[i].Authority = steps[i].Host
	}
	return Placement{Steps: steps, Promise: msec(45), Patience: msec(60)}
}

// step is the nth step of an action, from 0.
func (t Placement) step(do string, n int) *PlaceStep {
	return &t.Steps[nth(t.Steps, n, func(s PlaceStep) bool { return s.Do == do })]
}

// moved moves a step in time. Its place in the list does not matter.
func (s *PlaceStep) moved(by time.Duration) { s.At += by; s.StoreMS += by.Milliseconds() }

func TestPlacement(t *testing.T) {
	if r := placementExample().Check(); len(r.Broken) > 0 || r.Grants != 3 || r.Emits != 3 {
		t.Errorf("without fault: %+v", r)
	}
	eachGuard(t, []string{"placement.go"}, []guardCase[Placement]{
		{"no such action", "Vanish is no action", func(x *Placement) { x.step("Stop", 0).Do = "Vanish" }},
		{"another membership while one lasts", "Grant: b gets membership 2, and 1 has 1 ms left", func(x *Placement) {
			s := x.step("Grant", 1)
			s.Authority, s.StoreMS = "b", 1101
			x.step("Grant", 0).Authority = "b"
			s.StoreMS = 1101
		}},
		{"a membership comes back", "Grant: a gets membership 1 after 1 has ended", func(x *Placement) { x.step("Grant", 4).Life = 1 }},
		{"hears of another's membership", "Joined: b hears of membership 3, and the store has 2", func(x *Placement) { x.step("Joined", 1).Life = 3 }},
		{"leaves with an actor", "Leave: a gives membership 1 back, and has token 1", func(x *Placement) { x.step("Leave", 0).moved(-msec(10)) }},
		{"writes after its membership", "IsMember: c sends a record with token 3 under membership 3, and has 3 until 10", func(x *Placement) { x.step("Joined", 2).Sent = 1 }},
		{"a version skipped", "Write: c sends version 4 with token 3 after version 2", func(x *Placement) { x.step("Write", 2).Version = 4 }},
		{"writes though it has the actor", "Write: a sends a record with token 2, and has token 1", func(x *Placement) {
			x.Steps = append(x.Steps, PlaceStep{Do: "Write", At: msec(25), StoreMS: 1025, Host: "a", Authority: "a", Life: 1, Version: 2, Token: 2})
		}},
		{"takes over from a member", "Free: c sends a record with token 3, and membership 2 of b, the owner, lasts", func(x *Placement) { x.step("Write", 2).StoreMS = 1103 }},
		{"a record that nobody sent", "Written: c has not sent version 3 with token 9", func(x *Placement) { x.step("Written", 2).Token = 9 }},
		{"an older record replaces a newer one", "Written: version 3 of d replaces version 3", func(x *Placement) { x.step("Outrun", 0).Do = "Written" }},
		{"a newer record is refused", "Outrun: the store refuses version 3 of c, and has version 2", func(x *Placement) { x.step("Written", 2).Do = "Outrun" }},
		{"begins after the membership", "Activate: a activates token 1 at 102ms", func(x *Placement) { x.step("Activate", 0).moved(msec(90)) }},
		{"begins without a record", "Activate: b activates token 7, and has 2 on record", func(x *Placement) { x.step("Activate", 1).Token = 7 }},
		{"begins twice", "Activate: a activates token 1, and its process has token 1", func(x *Placement) {
			x.Steps = append(x.Steps, PlaceStep{Do: "Activate", At: msec(13), Host: "a", Token: 1})
		}},
		{"a token does not rise", "TokensRise: c activates token 2 after token 2", func(x *Placement) {
			x.step("Write", 2).Token, x.step("Written", 2).Token, x.step("Activate", 2).Token = 2, 2, 2
		}},
		{"relies after it was told to end", "Check: a may rely on token 1, and its host runs 1, on the way out: true", func(x *Placement) { x.step("Check", 0).moved(msec(12)) }},
		{"relies beyond the membership", "Promised: b may rely on token 2 until 104ms, and its membership ends at 103ms", func(x *Placement) { x.step("Check", 1).Until = msec(104) }},
		{"relies beyond the promise", "Promised: a may rely on token 1 for 46ms, longer than 45ms", func(x *Placement) { x.step("Check", 0).Until = msec(66) }},
		{"two rely on it", "OneLive: c relies on token 3, and b on token 2 until 121ms", func(x *Placement) { x.step("Check", 1).Until = msec(121) }},
		{"ends what it does not have", "Passivate: c ends token 3, which it does not have", func(x *Placement) { x.step("Passivate", 1).moved(-msec(20)) }},
		{"the process ends by itself", "Stop: the process of a ends token 1, has 1, and was told: false", func(x *Placement) { x.step("Stop", 0).moved(-msec(10)) }},
		{"removes what it runs", "Remove: a removes token 1, which it runs", func(x *Placement) { x.step("Remove", 0).moved(-msec(10)) }},
		{"does not wait for its process", "Remove: c removes token 3, and waits for its process until 180ms", func(x *Placement) { x.step("Remove", 2).moved(-msec(1)) }},
	}, placementExample, func(x Placement) Result { return x.Check() })
}
