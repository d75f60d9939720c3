package leaseserver

import (
	"sync"

	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/problem"
)

// connectionSize is the memory of an idle connection with TLS.
const connectionSize = 40 << 10

// smallBody is the size of a body that is not counted: more than hosts send.
const smallBody = 4 << 10

// connections is how many connections the memory allows: five eighths of it are theirs.
// Without a limit of memory, o.MaxConnections stands.
func (o Listening) connections() int {
	if o.MemoryLimit == 0 {
		return o.MaxConnections
	}
	return max(1, min(o.MaxConnections, int(o.MemoryLimit/8*5/connectionSize)))
}

// waiters is how many requests may wait for locks: they leave connections to others.
func (o Listening) waiters() int64 { return int64(min(maxWaiters, o.connections()/2)) }

// perAddress leaves a quarter of the connections to other addresses, unless it is configured.
func (o Listening) perAddress() int {
	if o.PerAddress == 0 {
		return max(1, o.connections()/4*3)
	}
	return o.PerAddress
}

// bodies shares the memory for the bodies of requests that are being read. A tenant can
// have three quarters of it.
type bodies struct {
	mu    sync.Mutex
	limit int64 // 0: there is none
	used  int64
	of    map[string]int64
}

// share gives bodies an eighth of the memory.
func (b *bodies) share(memory int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit, b.of = memory/8, map[string]int64{}
}

// take reserves n bytes, until give.
func (b *bodies) take(tenant string, n int64) (give func(), err error) {
	if n <= smallBody {
		return func() {}, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit == 0 {
		return func() {}, nil
	}
	if b.used+n > b.limit || b.of[tenant]+n > b.limit/4*3 {
		return nil, problem.New(problem.Overloaded, "bodies that are being read fill their part of memory_limit: send this one again, and whole").After(overloadedRetry)
	}
	b.used += n
	b.of[tenant] += n
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.used -= n
		if b.of[tenant] -= n; b.of[tenant] == 0 {
			delete(b.of, tenant)
		}
	}, nil
}

// memory is what bodies have, and may have.
func (b *bodies) memory() metrics.Memory {
	b.mu.Lock()
	defer b.mu.Unlock()
	return metrics.Memory{Reserved: b.used, Reservable: b.limit}
}
