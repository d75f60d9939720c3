package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const chaosSet = "the-set" // what the sentinels call the primary and its replicas

// needs skips the test where a server is not installed, unless it is make chaos.
func needs(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && *chaosFull {
		t.Fatal(err)
	}
	if err != nil {
		t.Skipf("%s is not installed (scripts/setup installs it)", name)
	}
	return path
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// redisServer is a redis-server that keeps nothing when it ends.
type redisServer struct {
	*instance
	address string
	args    []string
}

func (s *site) startRedis(args ...string) *redisServer {
	s.t.Helper()
	port := freePort(s.t)
	r := &redisServer{address: fmt.Sprintf("127.0.0.1:%d", port), args: append([]string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no",
		"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
	}, args...)}
	s.runRedis(r)
	return r
}

// runRedis starts the server, also anew, and returns when it answers.
func (s *site) runRedis(r *redisServer) {
	s.t.Helper()
	r.instance = s.launchCommand(exec.Command(needs(s.t, "redis-server"), r.args...))
	eventually(s.t, "Redis answers", func() bool { _, err := redisAsk(r.address, "PING"); return err == nil })
}

// redisAsk sends one command.
func redisAsk(address string, args ...any) (any, error) {
	c := redis.NewClient(&redis.Options{Addr: address, Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return c.Do(ctx, args...).Result()
}

func (r *redisServer) url() string { return "redis://" + r.address + "/0?" }

// initialised declares the provider's store new, and returns its URL.
func (s *site) initialised(url string) string {
	s.t.Helper()
	s.kazahanad("leases", "init", "--config", "none", "--yes", "--provider", url).ok(s.t)
	return url
}

// startSentinels runs three that watch the primary, and returns when they know
// each other and its replicas.
func (s *site) startSentinels(primary *redisServer, replicas int) (addresses []string) {
	s.t.Helper()
	bin := needs(s.t, "redis-sentinel")
	_, port, _ := strings.Cut(primary.address, ":")
	for i := range 3 {
		own := freePort(s.t)
		file := s.path(fmt.Sprintf("sentinel-%d.conf", i))
		writeFile(s.t, file, fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %s 127.0.0.1 %s 2\n"+
			"sentinel down-after-milliseconds %s 1000\nsentinel failover-timeout %s 5000\n", own, s.dir, chaosSet, port, chaosSet, chaosSet))
		s.launchCommand(exec.Command(bin, file))
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", own))
	}
	for _, a := range addresses {
		eventually(s.t, "the sentinels know each other", func() bool {
			text, err := redisAsk(a, "SENTINEL", "MASTER", chaosSet)
			known := fmt.Sprint(text)
			return err == nil && strings.Contains(known, "num-other-sentinels 2 ") && strings.Contains(known, fmt.Sprintf("num-slaves %d ", replicas))
		})
	}
	return addresses
}

// awaitPromotion returns the address of the primary that takes the old one's place.
func (s *site) awaitPromotion(sentinel string, old *redisServer) (address string) {
	s.t.Helper()
	eventually(s.t, "a replica is promoted", func() bool {
		named, err := redisAsk(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", chaosSet)
		parts, ok := named.([]any)
		if err != nil || !ok || len(parts) != 2 {
			return false
		}
		if address = fmt.Sprint(parts[0], ":", parts[1]); address == old.address {
			return false
		}
		role, err := redisAsk(address, "ROLE")
		return err == nil && strings.HasPrefix(fmt.Sprint(role), "[master ")
	})
	return address
}

func chaosRedisFailover(c *chaos) {
	primary := c.startRedis()
	_, port, _ := strings.Cut(primary.address, ":")
	for range 2 {
		c.startRedis("--replicaof", "127.0.0.1 "+port)
	}
	sentinels := c.startSentinels(primary, 2)
	c.start(c.initialised("redis+sentinel://" + strings.Join(sentinels, ",") + "/" + chaosSet + "/0?min_replicas=1&" + c.terms()))
	c.pause(c.term * 3 / 2)
	c.breaks(primary.kill)
	c.say("killed the primary %s with -9", primary.address)
	c.crash()
	promoted := c.awaitPromotion(sentinels[0], primary)
	// The fence begins with the first acquire, some time after the death.
	c.granting(c.breaking.Add(c.fence()))
	c.say("Sentinel has promoted %s; the fence is due for %v", promoted, c.fence())
	c.pause(c.term / 2)
	c.crash()
}

func chaosRedisEmptied(c *chaos) {
	server := c.startRedis()
	c.start(c.initialised(server.url() + c.terms()))
	// The leases are young: were there no fence, they would be in use for long
	// after others have been granted.
	c.pause(c.term / 8)
	c.breaks(server.kill)
	c.say("killed Redis %s with -9", server.address)
	empty := time.Now()
	c.runRedis(server)
	c.granting(empty.Add(c.fence()))
	c.say("started it again, without data; the fence is due for %v", c.fence())
	c.crash()
	c.pause(c.term / 2)
	c.crash()
}

func chaosRedisFrozen(c *chaos) {
	server := c.startRedis()
	c.start(c.initialised(server.url() + c.terms()))
	c.pause(c.term * 3 / 2)
	c.breaks(func() { c.signal(server.instance, syscall.SIGSTOP) })
	c.say("stopped Redis %s with SIGSTOP", server.address)
	c.crash()
	c.outage()
	c.crash()
	c.mends(func() { c.signal(server.instance, syscall.SIGCONT) })
	c.say("sent SIGCONT: it goes on with what it was asked meanwhile")
}

func (c *chaos) signal(d *instance, sig syscall.Signal) {
	c.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		c.t.Fatal(err)
	}
}

// etcdMember is one of the servers of a cluster. It keeps its data.
type etcdMember struct {
	*instance
	client string // host:port
	args   []string
}

func (s *site) runEtcd(m *etcdMember) {
	s.t.Helper()
	cmd := exec.Command(needs(s.t, "etcd"), m.args...)
	cmd.Env = s.environment()
	m.instance = s.launchCommand(cmd)
}

func (s *site) startEtcd() (members []*etcdMember) {
	s.t.Helper()
	var initial []string
	for i := range 3 {
		name, peer := fmt.Sprintf("m%d", i), fmt.Sprintf("http://127.0.0.1:%d", freePort(s.t))
		m := &etcdMember{client: fmt.Sprintf("127.0.0.1:%d", freePort(s.t))}
		m.args = []string{
			"--name", name, "--data-dir", s.path(name), "--unsafe-no-fsync", "--logger", "zap", "--log-level", "error",
			"--listen-client-urls", "http://" + m.client, "--advertise-client-urls", "http://" + m.client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--heartbeat-interval", "50", "--election-timeout", "500",
		}
		initial = append(initial, name+"="+peer)
		members = append(members, m)
	}
	for _, m := range members {
		m.args = append(m.args, "--initial-cluster", strings.Join(initial, ","))
		s.runEtcd(m)
	}
	return members
}

// etcdURL names the members.
func (s *site) etcdURL(members []*etcdMember) string {
	var clients []string
	for _, m := range members {
		clients = append(clients, m.client)
	}
	return "etcd://" + strings.Join(clients, ",")
}

func chaosEtcd(c *chaos) {
	members := c.startEtcd()
	c.start(c.etcdURL(members) + "?" + c.terms())
	c.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	c.pause(c.term * 3 / 2)
	members[0].kill()
	c.say("killed the etcd member %s with -9: two are left", members[0].client)
	c.crash()
	c.pause(c.term * 3 / 2)
	c.breaks(members[1].kill)
	c.say("killed the etcd member %s with -9: one is left, no majority", members[1].client)
	c.outage()
	c.crash()
	c.mends(func() {
		c.runEtcd(members[0])
		c.runEtcd(members[1])
	})
	c.say("started both again")
}

func chaosLeaseServer(c *chaos) {
	store := []string{"--provider", "sqlite:" + c.leases() + "?" + c.terms()}
	server := c.startLeaseServer("127.0.0.1:0", store...)
	c.start(server.url())
	c.pause(c.term * 3 / 2)
	c.breaks(server.kill)
	c.say("killed the lease server %s with -9", server.address)
	c.crash()
	c.outage()
	c.crash()
	c.mends(func() { c.startLeaseServer(server.address, store...) })
	c.say("started it again, on the same file")
}

func chaosTwoLeaseServers(c *chaos) {
	store := []string{"--provider", c.initialised(c.startRedis().url() + c.terms())}
	servers := []*leaseServer{c.startLeaseServer("127.0.0.1:0", store...), c.startLeaseServer("127.0.0.1:0", store...)}
	c.start(servers[0].url() + "," + servers[1].url())
	c.rng.Shuffle(2, func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	c.pause(c.term * 3 / 2)
	servers[0].kill()
	c.say("killed the lease server %s with -9: one is left", servers[0].address)
	c.crash()
	c.pause(c.term * 3 / 2)
	c.breaks(servers[1].kill)
	c.say("killed the lease server %s with -9: none is left", servers[1].address)
	c.outage()
	c.crash()
	c.mends(func() {
		for _, s := range servers {
			c.startLeaseServer(s.address, store...)
		}
	})
	c.say("started both again")
}
