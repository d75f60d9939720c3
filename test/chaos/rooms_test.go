package chaos

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

var chaosRooms = flag.Int("chaos.rooms", 10_000, "rooms of the full scenario of placement")

// roomPatience is how long it may take until every host finds every room, on a
// machine that is busy with other things.
const roomPatience = 4 * await.Patience

// chatRooms is examples/chat-rooms on several hosts of this machine.
type chatRooms struct {
	*chaos
	many          int
	ttl, interval time.Duration
	sweep         time.Duration // from one look at all rooms to the next
	programs      roomPrograms
	messages      *roomProcess // the store of those
	messagesURL   string
	hosts         []*roomHost
	resolvers     []*roomResolver
	senders       []*roomSender
	resolving     sync.WaitGroup
	sending       sync.WaitGroup
	stopResolving context.CancelFunc
	stopSending   context.CancelFunc
	resolve, send context.Context
	record        roomRecord
	backAfter     time.Duration  // how long the last step took until every host found every room
	gone          [8]atomic.Bool // by host: its daemon is dead or frozen
}

func (c *chatRooms) number(authority string) roomHostNumber {
	for _, h := range c.hosts {
		if h.authority == authority {
			return h.number
		}
	}
	return noHost
}

func (c *chatRooms) away(host roomHostNumber) bool { return c.gone[host].Load() }

// addHosts makes hosts that have not begun.
func (c *chatRooms) addHosts(n int, store string) {
	for i := range roomHostNumber(n) {
		h := &roomHost{Site: testkit.NewSite(c.T), number: i, authority: testkit.FreeAddress(c.T)}
		h.args = []string{"--store", store, "--placement-authority", h.authority, "--placement-ttl", c.ttl.String(), "--topology-interval", c.interval.String()}
		c.hosts = append(c.hosts, h)
		c.resolvers = append(c.resolvers, &roomResolver{rooms: c, host: h, named: make([]atomic.Int32, c.many)})
		c.leaves(h, false)
	}
}

// leaves notes that a host's daemon does nothing from now on.
func (c *chatRooms) leaves(h *roomHost, frozen bool) {
	c.gone[h.number].Store(true)
	c.record.away = append(c.record.away, roomAway{host: h.number, from: machineNow(), until: math.MaxInt64, frozen: frozen})
}

// returns notes that it may do something again.
func (c *chatRooms) returns(h *roomHost) {
	for i := range c.record.away {
		if w := &c.record.away[i]; w.host == h.number && w.until == math.MaxInt64 {
			w.until = machineNow()
		}
	}
	c.gone[h.number].Store(false)
}

// join starts hosts that have not begun.
func (c *chatRooms) join(hosts ...*roomHost) {
	for _, h := range hosts {
		h.daemon = h.Start(h.args...)
		h.launchRooms(c.programs, c.messagesURL)
	}
	for _, h := range hosts {
		h.awaitRooms()
		c.returns(h)
	}
	for _, h := range hosts {
		c.use(h)
	}
}

// use has all rooms resolved by a host's daemon, and messages sent by its processes.
func (c *chatRooms) use(h *roomHost) {
	c.resolving.Go(func() { c.resolvers[h.number].run(c.resolve) })
	for range 2 {
		s := c.newSender(h)
		c.sending.Go(func() { s.run(c.send, roomPace) })
	}
}

// step does something, and waits until every host finds every room again, and all agree where it is.
func (c *chatRooms) step(what string, f func()) {
	c.T.Helper()
	began := time.Now()
	c.say("%s", what)
	f()
	time.Sleep(2 * c.interval) // an earlier find may be in the old place
	since := machineNow()
	for deadline := time.Now().Add(roomPatience); !c.settled(since); time.Sleep(await.Interval) {
		if time.Now().After(deadline) {
			c.T.Fatalf("not within %v: every host finds every room, in the same place, after: %s", roomPatience, what)
		}
	}
	c.backAfter = time.Since(began)
	c.say("every host finds every room, and all agree where it is, after %v", c.backAfter.Round(time.Millisecond))
}

// settled reports whether each host that is there has found every room since then, and all of them
// name the same host for it.
func (c *chatRooms) settled(since int64) bool {
	var first *roomResolver
	for _, r := range c.resolvers {
		if c.away(r.host.number) {
			continue
		}
		if r.clean.Load() < since {
			return false
		}
		if first == nil {
			first = r
		}
		for room := range r.named {
			if r.named[room].Load() != first.named[room].Load() {
				return false
			}
		}
	}
	return true
}

// start starts everything, and returns when every host finds every room.
func (c *chatRooms) start(hosts, begin int) {
	c.T.Helper()
	c.programs = buildRoomPrograms(c.T)
	store := c.Initialised(c.StartRedis().URL())
	c.messages = launchLogged(c.Site, exec.Command(c.programs.store, "-listen", "127.0.0.1:0", "-log"), "messages")
	await.Eventually(c.T, "the store of messages says where it is", func() bool {
		text, err := os.ReadFile(c.messages.file)
		must.Succeed(c.T, err)
		var whole bool
		c.messagesURL, _, whole = strings.Cut(string(text), "\n")
		return whole
	})
	c.resolve, c.stopResolving = context.WithCancel(context.Background())
	c.send, c.stopSending = context.WithCancel(context.Background())
	c.T.Cleanup(func() {
		c.stopSending()
		c.stopResolving()
		c.sending.Wait()
		c.resolving.Wait()
	})
	c.addHosts(hosts, store)
	c.step(fmt.Sprintf("started %d hosts, each a daemon, a process in Python and one in Node", begin), func() { c.join(c.hosts[:begin]...) })
	c.say("all %d rooms are activated", c.many)
}

// end stops everything, and returns the logs.
func (c *chatRooms) end() roomRecord {
	c.T.Helper()
	c.stopSending()
	c.sending.Wait()
	c.final()
	r := &c.record
	c.stopResolving()
	c.resolving.Wait()
	for _, s := range c.senders {
		r.messages = append(r.messages, s.messages...)
	}
	for _, h := range c.hosts {
		for _, p := range h.processes {
			_ = p.stdin.Close()
		}
	}
	for _, h := range c.hosts {
		r.faults = append(r.faults, c.resolvers[h.number].faults...)
		for _, p := range h.processes {
			p.AwaitEnd()
			if p.Err != nil {
				c.T.Errorf("a process of %v ended with %v: %s", h, p.Err, p.Log)
			}
			activations, err := activationsOf(h.number, readFile[roomLine](c.T, p.file))
			if err != nil {
				r.faults = append(r.faults, fmt.Sprintf("a process of %v logs that %v", h, err))
			}
			r.activations = append(r.activations, activations...)
		}
	}
	r.store = readFile[storeRequest](c.T, c.messages.file)
	for room := range c.many {
		r.kept = append(r.kept, c.kept(room))
	}
	return *r
}

// final sends one more message to each room, or to some of them.
func (c *chatRooms) final() {
	from := time.Now()
	every := max(1, c.many/roomFinals)
	var next atomic.Int64
	var lanes sync.WaitGroup
	for i := range roomFinalLanes {
		at := i % len(c.hosts)
		for c.away(c.hosts[at].number) {
			at = (at + 1) % len(c.hosts)
		}
		s := c.newSender(c.hosts[at])
		lanes.Go(func() {
			defer s.http.CloseIdleConnections()
			for !c.T.Failed() {
				room := int(next.Add(int64(every))) - every
				if room >= c.many {
					return
				}
				for !s.send(room) {
					if time.Since(from) > roomPatience {
						c.T.Errorf("%s takes no message", roomName(room))
						return
					}
					time.Sleep(await.Interval)
				}
			}
		})
	}
	lanes.Wait()
	c.say("%d last messages to as many rooms, through all hosts, took %v", (c.many+every-1)/every, time.Since(from).Round(time.Millisecond))
}

// kept is what the store has of a room.
func (c *chatRooms) kept(room int) (texts []string) {
	request, err := http.NewRequestWithContext(c.T.Context(), http.MethodGet, c.messagesURL+"/"+roomName(room), nil)
	must.Succeed(c.T, err)
	request.Header.Set("Fencing-Token", fmt.Sprint(math.MaxInt64))
	answer, err := http.DefaultClient.Do(request)
	must.Succeed(c.T, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &texts)
	}
	must.Succeed(c.T, err)
	return texts
}

// killAndRestart ends a daemon as a crash would, and starts it at once.
func (c *chatRooms) killAndRestart(h *roomHost) {
	c.leaves(h, false)
	h.daemon.Kill()
	c.say("started it again")
	h.daemon = h.Start(h.args...)
	c.returns(h)
}

// freeze stops a host's daemon, or the whole host, until others have its rooms.
func (c *chatRooms) freeze(h *roomHost, all bool) {
	what := "the daemon"
	if all {
		what = "the daemon and the processes"
	}
	c.step(fmt.Sprintf("stopped %s of %v with SIGSTOP", what, h), func() {
		if all { // who wakes between the check and the write is refused by the token, if by anything
			rush, enough := context.WithCancel(c.send)
			defer enough()
			for range roomRush {
				s := c.newSender(h)
				c.sending.Go(func() { s.run(rush, 0) })
			}
			time.Sleep(roomRushes)
		}
		c.leaves(h, true)
		h.signal(syscall.SIGSTOP, all)
		time.Sleep(c.ttl * 11 / 10)
	})
	c.step("sent SIGCONT", func() {
		h.signal(syscall.SIGCONT, all)
		c.returns(h)
	})
}

// performRooms is perform for the scenario of placement.
func (c *chaos) performRooms(t *testing.T, s chaosScenario) (row string, violations []string) {
	t.Helper()
	r := &chatRooms{chaos: c, many: 300, ttl: 5 * time.Second, interval: time.Second / 2, sweep: time.Second}
	if *chaosFull {
		r.many, r.ttl, r.interval, r.sweep = *chaosRooms, 10*time.Second, time.Second, 3*time.Second
		r.record.soon = true
	}
	c.begin(t, s, fmt.Sprintf("terms of %v", r.ttl))
	if !*chaosFull {
		r.start(3, 3)
		r.step("killed the daemon of host 0 with -9", func() { r.killAndRestart(r.hosts[0]) })
	} else {
		r.start(4, 3)
		c.pause(r.ttl / 2)
		r.step("killed the daemon of host 0 with -9", func() { r.killAndRestart(r.hosts[0]) })
		c.pause(r.ttl / 2)
		r.step("stopped the daemon of host 1 politely", func() {
			r.leaves(r.hosts[1], false)
			r.hosts[1].daemon.Terminate()
		})
		r.step("host 3 joins", func() { r.join(r.hosts[3]) })
		c.pause(r.ttl / 2)
		r.freeze(r.hosts[2], false)
		c.pause(r.ttl / 2)
		r.freeze(r.hosts[0], true)
	}
	record := r.end()
	res := record.check()
	asked := int64(0)
	for _, one := range r.resolvers {
		asked += one.asked.Load()
	}
	if asked == 0 || res.moved == 0 || res.accepted < min(r.many, roomFinals) {
		t.Errorf("it tested nothing: %d resolves, %d activations after another, %d writes", asked, res.moved, res.accepted)
	}
	c.say("checked %d resolves; %d writes that the store took and %d requests that it refused by their tokens; "+
		"%d activations, %d of them after another of the room, which in %d of these did not know; %d messages that were answered",
		asked, res.accepted, res.refused, len(record.activations), res.moved, res.unaware, res.acknowledged)
	n := res.count
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%d\t%v\t%d\t%d\t%d\t%s\t", s.name, r.many, asked, len(record.activations), res.accepted, res.refused,
		r.backAfter.Round(time.Millisecond), n[roomsTwoOwners], n[roomsTwoLive]+n[roomsNumbers], n[roomsLost]+n[roomsDisordered], res.verdict()), res.violations
}
