package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// roomLanes is how many resolves one host has under way. None of them waits: who
	// waits for one room does not see that another is back.
	roomLanes = 64
	// roomRound is from one look at rooms that were not found to the next: of many
	// only at roomScouts, unless one of those is found. The rooms of a host come back
	// together, and the daemons have other things to do.
	roomRound  = 250 * time.Millisecond
	roomScouts = 100
	// roomPace is between two messages of one sender. Every other one goes to one of
	// the first roomsHot rooms.
	roomPace = 80 * time.Millisecond
	roomsHot = 50
	// roomFinalLanes send a last message to each room, or to so many of them.
	roomFinalLanes = 8
	roomFinals     = 2000
	// roomRush is how many senders have a message under way when a host is frozen, and
	// roomRushes for how long they have sent one after the other.
	roomRush   = 32
	roomRushes = 300 * time.Millisecond
)

// roomName is the identity of a room.
func roomName(room int) string { return fmt.Sprintf("room-%d", room) }

// machineNow is the clock that all processes of the machine share, in nanoseconds.
func machineNow() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

// roomResolver resolves all rooms through one daemon, again and again.
type roomResolver struct {
	rooms  *chatRooms
	host   *roomHost
	named  []atomic.Int32 // by room: the host that the daemon has named last
	clean  atomic.Int64   // when the last look at all rooms began that found every one
	asked  atomic.Int64   // resolves that were answered
	faults []string
}

// run resolves until ctx is done: all rooms every now and then, and more often the ones that were
// not found.
func (r *roomResolver) run(ctx context.Context) {
	all := make([]int, len(r.named))
	for room := range all {
		all[room] = room
	}
	var client *wire.Client
	defer func() {
		if client != nil {
			_ = client.Close()
		}
	}()
	swept := time.Time{}
	missing := []int(nil)
	for ctx.Err() == nil {
		round := time.Now()
		began := machineNow()
		due, whole := missing, false
		if round.Sub(swept) >= r.rooms.sweep {
			due, whole, swept = all, true, round
		}
		if client == nil || client.Err() != nil {
			if client != nil {
				_ = client.Close()
			}
			client, _ = testkit.DialSocket(r.host.Socket)
		}
		if rest := due[min(roomScouts, len(due)):]; whole || len(rest) == 0 {
			missing = r.look(ctx, client, due)
		} else if missing = r.look(ctx, client, due[:roomScouts]); len(missing) < roomScouts {
			missing = append(missing, r.look(ctx, client, rest)...)
		} else {
			missing = slices.Concat(rest, missing) // others are asked next time
		}
		if whole && len(missing) == 0 && ctx.Err() == nil {
			r.clean.Store(began)
		}
		select {
		case <-ctx.Done():
		case <-time.After(roomRound - time.Since(round)):
		}
	}
}

// look resolves some rooms, and returns the ones that were not found.
func (r *roomResolver) look(ctx context.Context, client *wire.Client, due []int) (missing []int) {
	within, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	var next atomic.Int64
	var mu sync.Mutex
	var lanes sync.WaitGroup
	for range min(roomLanes, len(due)) {
		lanes.Go(func() {
			for {
				i := int(next.Add(1) - 1)
				if i >= len(due) || ctx.Err() != nil {
					return
				}
				authority, fault := r.resolve(within, client, due[i])
				if ctx.Err() != nil {
					return // a process that stops does not wait for the answer
				}
				r.named[due[i]].Store(int32(authority))
				if authority == noHost || fault != "" || r.rooms.away(authority) {
					mu.Lock()
					missing = append(missing, due[i])
					if fault != "" {
						r.faults = append(r.faults, fault)
					}
					mu.Unlock()
				}
			}
		})
	}
	lanes.Wait()
	return missing
}

func (r *roomResolver) resolve(ctx context.Context, client *wire.Client, room int) (authority roomHostNumber, fault string) {
	var answer struct {
		Authority string `json:"authority"`
		Locality  string `json:"locality"`
		PID       string `json:"pid"`
		Token     int64  `json:"token"`
	}
	err := error(wire.ErrClosed)
	if client != nil {
		err = client.Call(ctx, "Placement.Resolve", &answer, "room", roomName(room), map[string]any{"wait_ms": 0})
	}
	var refusal *wire.Error
	switch {
	case errors.As(err, &refusal):
		switch refusal.Code {
		case wire.CodePlacementNotReady, wire.CodePlacementPending, wire.CodePlacementUnserved, wire.CodeLockHeld, wire.CodeActivationFailed, wire.CodeShuttingDown, wire.CodeStoreUnavailable, wire.CodeOverloaded:
		default:
			fault = fmt.Sprintf("%v: a resolve of %s fails with %v", r.host, roomName(room), refusal)
		}
		return noHost, fault
	case err != nil:
		return noHost, ""
	}
	r.asked.Add(1)
	authority = r.rooms.number(answer.Authority)
	local := authority == r.host.number
	if authority == noHost || local != (answer.Locality == "local") || local != (answer.Token > 0) || local != (answer.PID != "") {
		fault = fmt.Sprintf("%v: a resolve of %s is answered %+v", r.host, roomName(room), answer)
	}
	return authority, fault
}

// roomSender sends messages to rooms, by whichever process of a host.
type roomSender struct {
	rooms    *chatRooms
	name     string
	doors    []string // addresses of the processes
	random   *rand.Rand
	http     *http.Client
	messages []roomMessage
}

func (c *chatRooms) newSender(to *roomHost) *roomSender {
	s := &roomSender{rooms: c, name: fmt.Sprintf("%d-%d", to.number, len(c.senders)), random: rand.New(rand.NewPCG(c.rng.Uint64(), 0)), http: &http.Client{Transport: &http.Transport{}}}
	for _, p := range to.processes {
		s.doors = append(s.doors, p.address)
	}
	c.senders = append(c.senders, s)
	return s
}

// run sends until ctx is done.
func (s *roomSender) run(ctx context.Context, pace time.Duration) {
	defer s.http.CloseIdleConnections()
	for ctx.Err() == nil {
		room := s.random.IntN(s.rooms.many)
		if s.random.IntN(2) == 0 {
			room = s.random.IntN(min(roomsHot, s.rooms.many))
		}
		s.send(room)
		select {
		case <-ctx.Done():
		case <-time.After(pace):
		}
	}
}

// send has a message appended, or not: it is unknown without an answer.
func (s *roomSender) send(room int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	m := roomMessage{room: room, text: fmt.Sprintf("%s-%d", s.name, len(s.messages)), sent: machineNow()}
	url := "http://" + s.doors[s.random.IntN(len(s.doors))] + "/" + roomName(room)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(m.text))
	if err != nil {
		panic(err)
	}
	answer, err := s.http.Do(request)
	if err == nil {
		_, err = io.Copy(io.Discard, answer.Body)
		m.ok = err == nil && answer.StatusCode == http.StatusOK
		_ = answer.Body.Close()
	}
	m.answered = machineNow()
	s.messages = append(s.messages, m)
	return m.ok
}
