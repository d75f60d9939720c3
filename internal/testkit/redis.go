package testkit

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/redis/go-redis/v9"
)

// FreeAddress is an address on which nothing listens at this moment: of a server that is not
// there, or that is started again at the same address.
func FreeAddress(t *testing.T) string { return fmt.Sprintf("127.0.0.1:%d", ring.FreePort(t)) }

// RedisServer is a redis-server that keeps nothing when it ends.
type RedisServer struct {
	*Instance
	Address string
	Args    []string
}

func (s *Site) StartRedis(args ...string) *RedisServer {
	s.T.Helper()
	port := ring.FreePort(s.T)
	r := &RedisServer{Address: fmt.Sprintf("127.0.0.1:%d", port), Args: append([]string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", s.Dir, "--save", "", "--appendonly", "no",
		"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
	}, args...)}
	s.RunRedis(r)
	return r
}

// RunRedis starts the server, also anew, and returns when it answers.
func (s *Site) RunRedis(r *RedisServer) {
	s.T.Helper()
	r.Instance = s.LaunchCommand(exec.Command(ring.Program(s.T, "redis-server"), r.Args...))
	await.Eventually(s.T, "Redis answers", func() bool { _, err := RedisAsk(r.Address, "PING"); return err == nil })
}

// RedisAsk sends one command.
func RedisAsk(address string, args ...any) (any, error) {
	c := redis.NewClient(&redis.Options{Addr: address, Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return c.Do(ctx, args...).Result()
}

func (r *RedisServer) URL() string { return "redis://" + r.Address + "/0?" }

// Initialised declares the provider's store new, and returns its URL.
func (s *Site) Initialised(url string) string {
	s.T.Helper()
	s.Kazahanad("leases", "init", "--config", "none", "--yes", "--provider", url).OK(s.T)
	return url
}

// StartSentinels runs three that watch the primary, and returns when they know
// each other and its replicas.
func (s *Site) StartSentinels(primary *RedisServer, replicas int) (addresses []string) {
	s.T.Helper()
	_, text, _ := strings.Cut(primary.Address, ":")
	port, err := strconv.Atoi(text)
	if err != nil {
		s.T.Fatal(err)
	}
	return redistest.Sentinels(s.T, &redistest.Server{Port: port}, replicas, "", "")
}

// AwaitPromotion returns the address of the primary that takes the old one's place.
func (s *Site) AwaitPromotion(sentinel string, old *RedisServer) (address string) {
	s.T.Helper()
	await.Eventually(s.T, "a replica is promoted", func() bool {
		named, err := RedisAsk(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.SentinelSet)
		parts, ok := named.([]any)
		if err != nil || !ok || len(parts) != 2 {
			return false
		}
		if address = fmt.Sprint(parts[0], ":", parts[1]); address == old.Address {
			return false
		}
		role, err := RedisAsk(address, "ROLE")
		return err == nil && strings.HasPrefix(fmt.Sprint(role), "[master ")
	})
	return address
}
