//go:build linux

package abuse

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/caller"
)

const (
	actorKind    = "abuse"
	resolvers    = 64
	snapshotSize = 60_000
	resolveWait  = 10 * time.Second
)

// placementSnapshots lets actors come and go, each of which leaves a large snapshot.
func (a *attacker) placementSnapshots() {
	for round := 0; ; round++ {
		if end, err := a.activate(round, 1000); err == nil {
			end()
		}
		time.Sleep(shortPause)
	}
}

// snapshotsNeverRead activates actors with long names, asks for all of them, and reads
// nothing.
func (a *attacker) snapshotsNeverRead() {
	_, _ = a.activate(0, 1000)
	a.keep(1500, a.socket, a.unread("Placement.Snapshot", options{"limit": 1000}))
}

// eventsNeverRead watches actors that come and go, and reads nothing.
func (a *attacker) eventsNeverRead() {
	a.keep(1000, a.socket, a.unread("Placement.Watch", options{"events": []string{"resolved", "activated", "passivated"}}))
	a.placementSnapshots()
}

// activate activates so many actors. end passivates them.
func (a *attacker) activate(round, n int) (end func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	passivate := func(caller.Actor) []byte { return make([]byte, snapshotSize) }
	executor, err := caller.Register(ctx, a.Target.Socket, []string{actorKind}, nil, passivate)
	if err != nil {
		return nil, err
	}
	client := caller.New(a.Target.Socket, startLimit)
	var all sync.WaitGroup
	for r := range resolvers {
		all.Go(func() {
			for i := r; i < n && ctx.Err() == nil; i += resolvers {
				_, _ = client.Resolve(ctx, actorKind, fmt.Sprint(a.Number, "-", round, "-", i, strings.Repeat("x", 200)), resolveWait)
				a.now.asked.Add(1)
			}
		})
	}
	all.Wait()
	return func() {
		_ = executor.Close(context.Background())
		_ = client.Close()
	}, nil
}
