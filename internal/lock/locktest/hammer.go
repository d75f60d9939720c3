package locktest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// hammerPaused: clients stand still now and then until the term of what they hold is
// over, in rounds that take a part of the time like this, so that enough is done.
const hammerPaused = 5

// Hammer has a client of each store do what comes to its mind, until ctx is done,
// while the caller does harm to the backend. It judges what the clients saw, and
// returns how many calls they made and of how many nobody knows the outcome.
// short is the shortest term, patience what a client has with one call.
func Hammer(ctx context.Context, stores []lock.Store, allowed Allowed, short, patience time.Duration) (calls, unknown int, err error) {
	seed := rand.Uint64()
	began, paused := time.Now(), time.Duration(0)
	for round := 0; ctx.Err() == nil; round++ {
		h := &History{Allowed: allowed}
		pass, from := func(time.Duration) {}, time.Now()
		pausing := paused*hammerPaused <= time.Since(began)
		if pausing {
			pass = time.Sleep
		}
		var group sync.WaitGroup
		for i, store := range stores {
			c := &chaosClient{
				Store: h.Client(i, store), owner: []string{alice, bob, "carol"}[i%3], short: short.Milliseconds(), patience: patience,
				round: fmt.Sprint(round), id: i, random: rand.New(rand.NewPCG(seed, uint64(round*len(stores)+i))), pass: pass, lost: hammerLost,
			}
			group.Go(c.run)
		}
		group.Wait()
		if pausing {
			paused += time.Since(from)
		}
		n, open := h.Len()
		calls, unknown = calls+n, unknown+open
		if err := h.Check(); err != nil {
			return calls, unknown, fmt.Errorf("seed %d, round %d: %w", seed, round, err)
		}
	}
	return calls, unknown, nil
}
