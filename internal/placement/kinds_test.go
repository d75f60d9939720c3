package placement

import (
	"errors"
	"testing"
)

// seen is what a look shows: this host and another, with the kinds that they announce.
func (d *desk) seen(mine, others []string) {
	d.take(d.core.UpdateTopology([]Host{{Member{"me:1", 7}, mine}, {Member{"you:1", 3}, others}}, d.now))
}

// PL-4.2: a host owns what it has announced and still has a process for, and nothing else; what
// nobody serves is refused.
func TestKindsDecide(t *testing.T) {
	rooms, carts := []string{"room"}, []string{"cart"}
	for name, c := range map[string]struct{ mine, local, others []string }{
		"nobody":                          {},
		"another serves it":               {others: rooms},
		"another serves another":          {others: carts},
		"this host serves it":             {mine: rooms, local: rooms},
		"this host has not announced it":  {local: rooms, others: rooms},
		"it has announced it to nobody":   {local: rooms},
		"its process has gone":            {mine: rooms, others: rooms},
		"its process has gone, the last":  {mine: rooms, local: carts},
		"this host serves it, not others": {mine: rooms, local: rooms, others: carts},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.member()
			d.take(d.core.SetKinds(c.local, d.now))
			d.seen(c.mine, c.others)
			r, err := d.resolve()
			switch local := c.mine != nil && len(c.local) > 0 && c.local[0] == "room"; {
			case local && !errors.Is(err, ErrPending): // seed 004-13
				t.Errorf("resolved to %+v, %v; want this host", r, err)
			case local:
			case len(c.others) > 0 && c.others[0] == "room":
				if err != nil || r.Authority != "you:1" || r.Locality != Remote {
					t.Errorf("resolved to %+v, %v; want you:1", r, err)
				}
			case !errors.Is(err, ErrUnserved): // seed 004-15
				t.Errorf("resolved to %+v, %v; want ErrUnserved", r, err)
			}
			if local := len(d.todo) > 0; local != errors.Is(err, ErrPending) {
				t.Errorf("to do is %+v after %v", d.todo, err)
			}
		})
	}
}

// PL-4.2: what a host serves no more is passivated, and only that.
func TestKindIsLost(t *testing.T) {
	for name, lose := range map[string]func(d *desk){
		"its process has gone":        func(d *desk) { d.take(d.core.SetKinds([]string{"cart"}, d.now)) },
		"its announcement has gone":   func(d *desk) { d.seen([]string{"cart"}, nil) },
		"another host serves it, too": func(d *desk) { d.topology(others(d.T, false)...) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.member()
			d.activated()
			d.take(d.core.SetKinds([]string{"cart", "room"}, d.now))
			d.seen([]string{"cart", "room"}, nil)
			d.idle()
			lose(d)
			d.answer(Passivate, Result{})
			d.answer(Remove, Result{})
			if !d.core.Idle() {
				t.Error("it is still there")
			}
			want := NoAuthority
			if name == "another host serves it, too" {
				want = OtherAuthority
			}
			events := d.core.DrainEvents()
			if last := events[len(events)-1]; last.Kind != Passivated || last.Reason != want {
				t.Errorf("told is %+v, want the reason %q", last, want)
			}
		})
	}
}

// PL-C10: a strategy can be replaced.
func TestStrategy(t *testing.T) {
	last := func(names []string) func(Key) string { return func(Key) string { return names[len(names)-1] } }
	c := NewCore("", last)
	c.Start()
	c.UpdateTopology([]Host{serving("b:1", 1), serving("c:1", 1), serving("a:1", 1), {Member: Member{"d:1", 1}}}, Moment{})
	if r, _, err := c.Resolve(room, Moment{}); err != nil || r.Authority != "c:1" {
		t.Errorf("resolved to %+v, %v", r, err)
	}
}
