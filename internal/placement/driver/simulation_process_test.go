package driver

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/placement"
)

// live is an activation as its process knows it. The process relies on it for as long as Check
// has promised, even without the connection or the daemon.
type live struct {
	conn  int
	token int64
	until time.Duration // on the host's clock
}

// activate is the process's part. Each activation leaves its token behind as its
// snapshot. A frozen process may come to it when another has taken over long ago: it will
// be promised nothing.
func (n *node) activate(c placement.Command) (pid string) {
	n.stats.activated++
	if before := n.latest[c.Key]; c.Record.Token > before.Token {
		if leftBy(c.Record) < leftBy(before) {
			n.broken("%s activates %v with what token %d left, and token %d had what %d left", n.name, c.Key, leftBy(c.Record), before.Token, leftBy(before))
		}
		n.latest[c.Key] = c.Record
		n.alone(c.Key, nil)
	}
	n.live[c.Key] = live{conn: n.conn, token: c.Record.Token}
	n.act(c.Key)
	return fmt.Sprint("pid", c.Record.Token)
}

func leftBy(r placement.Record) int64 {
	token, _ := strconv.ParseInt(string(r.Snapshot), 10, 64)
	return token
}

// alone judges that no process but one relies on the key.
func (w *world) alone(k placement.Key, but *node) {
	for _, n := range w.nodes {
		if l, ok := n.live[k]; ok && n != but && n.boot() < l.until {
			w.broken("%v has token %d, and %s relies on token %d for %v more", k, w.latest[k].Token, n.name, l.token, l.until-n.boot())
		}
	}
}

func (n *node) passivate(c placement.Command) (snapshot []byte) {
	if n.live[c.Key].token != c.Record.Token {
		return nil // it never knew it
	}
	delete(n.live, c.Key)
	return strconv.AppendInt(nil, c.Record.Token, 10)
}

// act has the process do something for a key that it believes to have, after it
// has asked where the last promise is over.
func (n *node) act(k placement.Key) {
	l, ok := n.live[k]
	switch {
	case !ok || n.frozen > n.now:
	case n.boot() < l.until:
		n.stats.acted++
		n.alone(k, n)
		if l.token != n.latest[k].Token {
			n.broken("%s acts for %v with token %d, and there is %d", n.name, k, l.token, n.latest[k].Token)
		}
	case l.conn != n.conn:
		delete(n.live, k) // the connection has ended
	default:
		from := n.boot()
		n.on(n.delay(), func() {
			valid := n.check(k, l.token)
			n.after(n.delay(), func() { n.rely(k, l.token, from+valid) })
		})
	}
}

// check is the daemon's answer to Check: how long the activation may be relied on.
func (n *node) check(k placement.Key, token int64) time.Duration {
	valid, ok := n.core.Check(k, token, n.moment())
	for _, a := range n.core.Single(k, n.moment()).Activations {
		if n.late && a.Record.Token == token && a.Doing != "passivating" {
			valid, ok = simTTL*time.Millisecond, true
		}
	}
	if most := simDeadline * time.Millisecond; ok && valid > most && !n.unlimited {
		return most
	}
	return valid
}

// rely takes the answer, if the process still has the actor that it asked about.
func (n *node) rely(k placement.Key, token int64, until time.Duration) {
	if n.frozen > n.now {
		n.after(n.frozen-n.now, func() { n.rely(k, token, until) })
		return
	}
	if l, ok := n.live[k]; ok && l.token == token && until > n.boot() {
		l.until = max(l.until, until)
		n.live[k] = l
		n.act(k)
	}
}

// notice has the process know that the connection has ended.
func (n *node) notice() {
	for k, l := range n.live {
		if l.conn != n.conn && n.frozen <= n.now {
			delete(n.live, k)
		}
	}
}

// disconnect ends the connection, and there is a new one. The daemon knows at
// once, the process does not.
func (n *node) disconnect() {
	if n.core == nil {
		return
	}
	n.conn++
	n.gone(n.hasty)
}

// gone has the daemon do without the process; ended: that relies on nothing any more.
func (n *node) gone(ended bool) {
	n.registered, n.silent = nil, false
	n.announce()
	for _, k := range keysOf(n.assigned) {
		token := n.assigned[k].token
		n.on(1, func() {
			if ended {
				n.run(n.core.Ended(k, token, n.moment()))
			} else {
				fx, _ := n.core.Evict(k, token, n.moment())
				n.run(fx)
			}
		})
	}
	n.register()
}

// chooseKinds has the host's next process serve some of the kinds, or none.
func (n *node) chooseKinds() {
	n.wants = nil
	for _, kind := range simKinds {
		if n.rng.IntN(12) < n.processes {
			n.wants = append(n.wants, kind)
		}
	}
}

// register has the process register, after a while, and once it is not frozen.
func (n *node) register() {
	conn := n.conn
	var try func()
	try = func() {
		switch {
		case n.conn != conn:
		case n.frozen > n.now:
			n.after(n.frozen-n.now, func() { n.on(0, try) })
		default:
			n.registered, n.by = n.wants, conn
			n.announce()
		}
	}
	n.on(n.until(n.now+n.rng.Int64N(2000))-n.now, try)
}

// serves reports whether a process of the host has registered for the kind.
func (n *node) serves(kind string) bool { return slices.Contains(n.registered, kind) }

// announce tells the coordinator for which kinds there is a process that answers.
func (n *node) announce() {
	kinds := n.registered
	if n.silent && !n.patient {
		kinds = nil
	}
	if n.claiming {
		kinds = simKinds
	}
	n.run(n.core.SetKinds(kinds, n.moment()))
}

// answers notes whether the process does.
func (n *node) answers(yes bool) {
	if n.silent == yes {
		n.silent = !yes
		n.stats.silent++
		n.announce()
	}
}

// leave has the process go politely, when its actors are passivated. There is another one later.
func (n *node) leave() {
	if n.core == nil || n.paused > n.now || n.registered == nil {
		return
	}
	n.stats.left++
	n.chooseKinds()
	n.gone(false)
}

// die kills the process. There is another one later.
func (n *node) die() {
	if n.frozen = min(n.frozen, n.now); n.core == nil {
		return
	}
	n.stats.died++
	n.conn++
	n.inbox = nil
	clear(n.live)
	n.chooseKinds()
	n.on(0, func() { n.gone(true) })
}

// hang freezes a process for good, in some worlds.
func (w *world) hang() {
	if n := w.nodes[w.rng.IntN(simNodes)]; w.rng.IntN(2) == 0 && n.registered != nil {
		w.stats.hung++
		n.hung, n.frozen = true, math.MaxInt32
	}
}

func keysOf[V any](m map[placement.Key]V) []placement.Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b placement.Key) int { return cmp.Compare(a.Identity, b.Identity) })
}

var errDown = errors.New("the host is down")

// resolve asks the node's coordinator, and judges its answer.
func (n *node) resolve(k placement.Key) error {
	if n.core == nil || n.paused > n.now {
		return errDown
	}
	ready := n.core.State(n.moment()) == placement.StateMember
	n.resolved = placement.Event{}
	r, fx, err := n.core.Resolve(k, n.moment())
	commands := len(fx.Begin)
	n.run(fx)
	if !ready {
		if !errors.Is(err, placement.ErrNotReady) {
			n.broken("%s is not ready, and resolves %v to %+v, %v", n.name, k, r, err)
		}
		return err
	}
	authority := n.authority(k)
	if authority == "" {
		if !errors.Is(err, placement.ErrUnserved) || commands != 0 {
			n.broken("%s resolves %v, whose kind nobody serves, to %+v, %v, with %d commands", n.name, k, r, err, commands)
		}
		return err
	}
	switch {
	case n.resolved != placement.Event{Kind: placement.Resolved, Key: k, Authority: authority, ObservedMS: n.moment().UnixMS}:
		n.broken("%s has resolved %v, and told %+v", n.name, k, n.resolved)
	case err != nil && !errors.Is(err, placement.ErrPending):
		n.broken("%s does not resolve %v: %v", n.name, k, err)
	case err != nil:
		return err
	case r.Authority != authority || (r.Locality == placement.Local) != (authority == n.name) || commands != 0:
		n.broken("%s resolves %v of %s to %+v, with %d commands", n.name, k, authority, r, commands)
	case r.Locality == placement.Local && (r.Token == 0 || r.Token != n.told[k]):
		n.broken("%s resolves %v to %+v, and has told of token %d", n.name, k, r, n.told[k])
	}
	n.stats.resolved++
	return nil
}

// heard is what a subscriber hears.
func (n *node) heard(e placement.Event) {
	switch e.Kind {
	case placement.Resolved:
		n.resolved = e
	case placement.Activated:
		if e.Token <= n.told[e.Key] {
			n.broken("%s tells of %+v after token %d", n.name, e, n.told[e.Key])
		}
		n.told[e.Key] = e.Token
	}
}

// authority is where the node believes that the key belongs.
func (n *node) authority(k placement.Key) string {
	if n.core == nil {
		return ""
	}
	return n.core.Single(k, n.moment()).LivesAt
}
