package chaos

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func sec(s float64) int64 { return int64(s * float64(time.Second)) }

// roomExample is two hosts. Room 0 lives on host 0, with a daemon that is frozen from 10 s to 25
// s, then on host 1, and at 27 s it returns. Room 1 stays on host 1.
func roomExample() *roomRecord {
	return &roomRecord{
		soon: true,
		away: []roomAway{{host: 0, from: sec(10), until: sec(25.001), frozen: true}},
		activations: []roomActivation{
			{host: 0, writer: "p0", room: "room-0", version: 1, token: 1, begun: sec(0.1), ended: sec(25.1), told: true, relied: []int64{sec(1), sec(9)}},
			{host: 1, writer: "p1", room: "room-0", version: 2, token: 2, begun: sec(20.2), ended: sec(27), told: true, relied: []int64{sec(21), sec(26)}},
			{host: 0, writer: "p0", room: "room-0", version: 3, token: 3, begun: sec(27.2), relied: []int64{sec(28)}},
			{host: 1, writer: "p1", room: "room-1", version: 1, token: 1, begun: sec(0.1), relied: []int64{sec(5)}},
		},
		store: []storeRequest{
			{"/room-0", 1, "p0", false, true}, {"/room-0", 1, "p0", true, true}, {"/room-1", 1, "p1", true, true}, {"/room-0", 1, "p0", true, true},
			{"/room-0", 2, "p1", false, true}, {"/room-0", 2, "p1", true, true}, {"/room-0", 1, "p0", true, false}, {"/room-0", 3, "p0", true, true},
		},
		messages: []roomMessage{
			{0, "one", sec(1), sec(1.1), true}, {0, "two", sec(9), sec(9.1), true}, {0, "three", sec(21), sec(21.1), true}, {0, "lost", sec(24), sec(26), false},
			{0, "four", sec(28), sec(28.1), true}, {1, "one of room 1", sec(5), sec(5.1), true},
		},
		kept: [][]string{{"one", "two", "three", "four"}, {"one of room 1"}},
	}
}

func TestRoomsChecker(t *testing.T) {
	res := roomExample().check()
	if len(res.violations) > 0 || res.accepted != 5 || res.refused != 1 || res.moved != 2 || res.unaware != 1 || res.acknowledged != 5 {
		t.Errorf("without fault: %+v", res)
	}
	for name, test := range map[string]struct {
		put       func(f *roomRecord)
		want, who string
	}{
		"a token goes back": {func(f *roomRecord) { f.store[6].Accepted = true }, roomsTwoOwners, "room room-0: token 1 of p0 was accepted after token 2 of p1"},
		"a token of two processes": {func(f *roomRecord) { f.store[3].Writer = "p1" }, roomsTwoOwners,
			"room room-0: token 1 was accepted from p0 and from p1"},
		"a token of nobody": {func(f *roomRecord) { f.store[7].Writer = "p7" }, roomsTwoOwners, "room room-0: token 3 was accepted from p7, which has no activation"},

		"somebody relies on what is over":                    {func(f *roomRecord) { f.activations[1].relied[1] = sec(27.3) }, roomsTwoLive, "room room-0: p1 relied on token 2, 100ms after p0 had begun with token 3"},
		"somebody who was frozen relies on what is over":     {func(f *roomRecord) { f.activations[0].relied[1] = sec(25.05) }, roomsTwoLive, "room room-0: p0 relied on token 1, 4.85s after"},
		"somebody relies on an activation of the day before": {func(f *roomRecord) { f.activations[0].relied[1] = sec(30) }, roomsTwoLive, "room room-0: p0 relied on token 1, 2.8s after p0"},
		"two activations overlap":                            {func(f *roomRecord) { f.activations[1].ended = sec(27.25) }, roomsTwoLive, "room room-0: p1 ended its activation of token 2 50ms after p0"},
		"two activations overlap, and it was told late":      {func(f *roomRecord) { f.activations[1].ended, f.activations[1].told = sec(27.25), false }, roomsTwoLive, "room room-0: p1 ended"},
		"an activation never ends":                           {func(f *roomRecord) { f.activations[1].ended = 0 }, roomsTwoLive, "room room-0: p1 never ended its activation of token 2"},
		"a frozen host is no excuse later": {func(f *roomRecord) {
			f.away[0].until = sec(9)
			f.away[0].from = sec(8)
			f.activations[0].begun = sec(15)
		}, roomsTwoLive, "room room-0: p0 ended its activation of token 1 4.9s after"},
		"two activations of one token": {func(f *roomRecord) { f.activations[1].token = 1 }, roomsTwoLive, "room room-0: token 1 was given to p0 and to p1"},
		"a version goes back":          {func(f *roomRecord) { f.activations[2].version = 2 }, roomsNumbers, "room room-0: version 2 has token 2, and version 2 token 3"},

		"a message is lost":         {func(f *roomRecord) { f.kept[0] = slices.Delete(f.kept[0], 1, 2) }, roomsLost, `room 0: "two"`},
		"a message is there twice":  {func(f *roomRecord) { f.kept[0] = append(f.kept[0], "one") }, roomsFault, `room 0 has the message "one"`},
		"a message of another room": {func(f *roomRecord) { f.kept[0] = append(f.kept[0], "one of room 1") }, roomsFault, `room 0 has the message "one of room 1"`},
		"messages change places":    {func(f *roomRecord) { k := f.kept[0]; k[0], k[1] = k[1], k[0] }, roomsDisordered, `room 0: "one"`},
		"a wrong answer":            {func(f *roomRecord) { f.faults = append(f.faults, "no") }, roomsFault, "no"},
	} {
		t.Run(name, func(t *testing.T) {
			f := roomExample()
			test.put(f)
			res := f.check()
			if found := strings.Join(res.violations, "\n"); res.count[test.want] == 0 || !strings.Contains(found, test.want+": "+test.who) {
				t.Errorf("found %q, want %q of %q", found, test.want, test.who)
			}
		})
	}
}

// A history that cannot be ruled out is no violation.
func TestRoomsCheckerAllows(t *testing.T) {
	for name, put := range map[string]func(f *roomRecord){
		"a message that was not answered": func(f *roomRecord) { f.kept[0] = slices.Insert(f.kept[0], 3, "lost") },
		"a daemon is away for good": func(f *roomRecord) {
			f.away[0].until = math.MaxInt64
			f.activations = slices.Delete(f.activations, 2, 3)
			f.activations[1].ended = 0
			f.store = f.store[:7]
		},
		"on a busy machine a process learns late that its daemon was killed": func(f *roomRecord) {
			f.soon, f.away[0].frozen, f.activations[0].told = false, false, false
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := roomExample()
			put(f)
			if res := f.check(); len(res.violations) > 0 {
				t.Error(res.violations)
			}
		})
	}
	f := roomExample() // where there is time it is a violation
	f.away[0].frozen, f.activations[0].told = false, false
	if res := f.check(); res.count[roomsTwoLive] == 0 {
		t.Errorf("a process learnt late that its daemon was killed: %v", res.violations)
	}
}

// What a process cannot have logged.
func TestRoomsLog(t *testing.T) {
	begun := roomLine{At: 1, Did: "activated", Room: "r", Version: 1, Token: 1}
	ended := roomLine{At: 3, Did: "passivated", Room: "r", Version: 1, Token: 1}
	wrote := roomLine{At: 2, Relied: 2, Did: "wrote", Room: "r", Version: 1, Token: 1}
	all, err := activationsOf(1, []roomLine{{Did: "ready", Address: "p"}, begun, wrote, ended})
	if err != nil || len(all) != 1 || all[0].writer != "p" || !all[0].told || all[0].ended != 3 || !slices.Equal(all[0].relied, []int64{2}) {
		t.Errorf("%+v, %v", all, err)
	}
	for _, lines := range [][]roomLine{{begun, begun}, {ended}, {wrote}, {begun, ended, wrote}, {begun, ended, ended}} {
		if _, err := activationsOf(1, lines); err == nil {
			t.Errorf("%+v is taken", lines)
		}
	}
}
