package leaseserver

import (
	"context"
	"sync"

	"github.com/kazahana/kazahana/internal/operator/guard"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/problem"
)

// connectionSize is the memory of an idle connection with TLS.
const connectionSize = 40 << 10

// smallBody is what a body may have without being counted: more than hosts send.
const smallBody = 4 << 10

// connections is how many connections the memory allows: five eighths of it are theirs.
// Without a limit of memory, o.MaxConnections stands.
func (o Listening) connections() int {
	if o.MemoryLimit == 0 {
		return o.MaxConnections
	}
	return max(1, min(o.MaxConnections, int(o.MemoryLimit/8*5/connectionSize)))
}

// requestSize is the memory of a request that waits, beside its connection's.
const requestSize = 16 << 10

// requests is how many requests, beside one of each connection, the memory allows: an eighth
// of it is theirs. 0: as many as there are.
func (o Listening) requests() int {
	if o.MemoryLimit == 0 {
		return 0
	}
	return max(maxStreams, int(o.MemoryLimit/8/requestSize))
}

// shared is how many requests that share connections may be under way: what those that wait
// for locks leave of requests, less a quarter for what is being read or answered. So such
// requests are refused before the guard has to close their connections. 0: there is no limit.
func (o Listening) shared() int64 {
	if o.MemoryLimit == 0 {
		return 0
	}
	return max(1, (int64(o.requests())-o.waiters())/4*3)
}

// waiters is how many requests may wait for locks: they leave room for others, also where
// they share connections.
func (o Listening) waiters() int64 {
	most := min(maxWaiters, o.connections()/2)
	if requests := o.requests(); requests > 0 {
		most = min(most, requests/4*3)
	}
	return int64(most)
}

// perAddress leaves a quarter of the connections to other addresses.
func (o Listening) perAddress() int {
	if o.PerAddress == 0 {
		return 0
	}
	return min(o.PerAddress, max(1, o.connections()/4*3))
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

// share takes a place for a request if it shares its connection with others, until give. Of
// these places, part is how many it may find taken.
func (s *Server) share(ctx context.Context, part func(all int64) int64) (give func(), err error) {
	most := s.maxShared.Load()
	if most == 0 || !guard.Shares(ctx) {
		return func() {}, nil
	}
	if most = part(most); s.shared.Add(1) > most {
		s.shared.Add(-1)
		return nil, s.overloaded(quota.Refusal{Quota: "memory_limit", Limit: most},
			"%d requests that share connections with others are under way, as many as memory_limit allows", most)
	}
	return func() { s.shared.Add(-1) }, nil
}
