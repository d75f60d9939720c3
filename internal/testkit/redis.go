package testkit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/redistest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/redis/go-redis/v9"
)

// FreeAddress is an address on which nothing listens at this moment: of a server that is not
// there, or that is started again at the same address.
func FreeAddress(t *testing.T) string { return fmt.Sprintf("127.0.0.1:%d", ring.FreePort(t)) }

// StartRedis runs a redis-server that keeps nothing when it ends.
func (s *Site) StartRedis(args ...string) *redistest.Server {
	s.T.Helper()
	return redistest.NewWithPort(s.T, args...)
}

// RedisAsk sends one command.
func RedisAsk(address string, args ...any) (any, error) {
	c := redis.NewClient(&redis.Options{Addr: address, Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return c.Do(ctx, args...).Result()
}

// Initialised declares the provider and the store at its place new, and returns the URL.
func (s *Site) Initialised(url string) string {
	s.T.Helper()
	for _, area := range []string{"leases", "store"} {
		s.Kazahanad(area, "init", "--config", "none", "--yes", "--provider", url).OK(s.T)
	}
	return url
}
