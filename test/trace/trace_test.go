package trace

import (
	"strings"
	"testing"
)

// example is two daemons that use one slot in turn, and a third one on another slot.
func example() Trace {
	return Trace{
		Grants: []Grant{
			{By: "a", Slot: low, Created: 1000, Expired: 1100, ReservedUntil: 1200, Left: true},
			{By: "b", Slot: low, Created: 1051, Expired: 1151, ReservedUntil: 1251},
			{By: "c", Slot: high, Created: 1000, Expired: 1100, ReservedUntil: 1200},
			{By: "a", Slot: low, Created: 1251, Expired: 1351, ReservedUntil: 1451},
		},
		Emits: []Emit{
			{"a", 1000, 0, 1}, {"a", 1050, 3, 2}, {"b", 1051, 0, 1}, {"b", 1150, 3, 2}, {"c", 1050, 4, 1}, {"c", 1050, 7, 2}, {"a", 1300, 1, 3},
		},
	}
}

func TestCheck(t *testing.T) {
	if r := example().Check(); len(r.Broken) > 0 || r.Grants != 4 || r.Emits != 7 || r.Pairs != 3 {
		t.Errorf("without fault: %+v", r)
	}
	for name, test := range map[string]struct {
		put  func(*Trace)
		want string
	}{
		"granted while reserved":     {func(x *Trace) { x.Grants[3].Created = 1250; x.Emits[6].MS = 1260 }, "Free: a's grant"},
		"granted again while in use": {func(x *Trace) { x.Grants[1].Created = 1050 }, "Free: b's grant"},
		"two at the same moment":     {func(x *Trace) { x.Grants[1].Created = 1000 }, "Free: "},
		"a wider slot while one is used": {func(x *Trace) {
			x.Grants[3].Slot.End = 8
			x.Grants[3].Created = 1199
			x.Emits = x.Emits[:6]
			x.Grants[1].Left = true
		}, "Free: a's grant"},
		"embedded after the end":           {func(x *Trace) { x.Emits[3].MS = 1151 }, "Regular: b made"},
		"embedded before the beginning":    {func(x *Trace) { x.Emits[2].MS = 1050 }, "Regular: b made"},
		"of another's slot":                {func(x *Trace) { x.Emits[4].Low = 3 }, "Regular: c made"},
		"under a lease of somebody else":   {func(x *Trace) { x.Emits[2].By = "c" }, "Regular: c made"},
		"the stream does not ascend":       {func(x *Trace) { x.Emits[5].Low = 4 }, "CanMake: c made"},
		"the stream goes back in time":     {func(x *Trace) { x.Emits[1].Order = 0 }, "CanMake: a made"},
		"released, and used on, unnoticed": {func(x *Trace) { x.Emits[1].MS = 1060 }, "Free: b's grant"},
	} {
		t.Run(name, func(t *testing.T) {
			x := example()
			test.put(&x)
			if r := x.Check(); !strings.Contains(strings.Join(r.Broken, "\n"), test.want) {
				t.Errorf("found %q, want %q", r.Broken, test.want)
			}
		})
	}
}

// A slot that was released comes back to the same daemon within the first lease's term.
func TestCheckSlotGrantedAgain(t *testing.T) {
	x := example()
	x.Grants[1].By = "a"
	x.Emits[2], x.Emits[3] = Emit{"a", 1060, 0, 3}, Emit{"a", 1150, 3, 4}
	x.Emits[6].Order = 5
	if r := x.Check(); len(r.Broken) > 0 {
		t.Error(r.Broken)
	}
}
