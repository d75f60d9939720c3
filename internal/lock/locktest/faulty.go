package locktest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/kazahana/kazahana/internal/lock"
)

// ErrLost is what Faulty answers when nobody can know what became of a request.
var ErrLost = errors.New("the connection was lost")

// Faulty returns a store that carries some requests out late or not at all, and
// loses some answers: about one in four. Close waits for those that are late.
func Faulty(store lock.Store, seed uint64) lock.Store {
	return &faulty{Store: store, random: rand.New(rand.NewPCG(seed, 0)), next: make(chan struct{})}
}

type faulty struct {
	lock.Store
	late sync.WaitGroup

	mu     sync.Mutex
	random *rand.Rand
	next   chan struct{} // closed by the next request
}

func (f *faulty) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	f.mu.Lock()
	fate := f.random.IntN(12)
	close(f.next)
	f.next = make(chan struct{})
	after := f.next
	f.mu.Unlock()
	switch fate {
	case 0: // the request is lost
		return lock.Lease{}, ErrLost
	case 1: // the answer is lost
		_, _ = f.Store.Do(ctx, r)
		return lock.Lease{}, ErrLost
	case 2: // the request arrives after the next one was sent
		f.late.Go(func() {
			<-after
			_, _ = f.Store.Do(context.WithoutCancel(ctx), r)
		})
		return lock.Lease{}, ErrLost
	}
	return f.Store.Do(ctx, r)
}

// Close implements lock.Store.
func (f *faulty) Close() error {
	f.mu.Lock()
	close(f.next)
	f.next = make(chan struct{})
	f.mu.Unlock()
	f.late.Wait()
	return f.Store.Close()
}
