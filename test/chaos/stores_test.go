package chaos

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func chaosRedisFailover(c *chaos) {
	primary := c.StartRedis()
	for range 2 {
		c.StartRedis("--replicaof", fmt.Sprint("127.0.0.1 ", primary.Port))
	}
	sentinels := redistest.Sentinels(c.T, primary, 2, "", "")
	c.start(c.Initialised("redis+sentinel://" + strings.Join(sentinels, ",") + "/" + redistest.SentinelSet + "/0?min_replicas=1&" + c.terms()))
	c.pause(c.term * 3 / 2)
	redistest.Impatient(c.T, sentinels)
	c.breaks(primary.Kill)
	c.say("killed the primary %s with -9", primary.Address())
	c.crash()
	promoted := c.awaitPromotion(sentinels[0], primary)
	// The fence begins with the first acquire, some time after the death.
	c.granting(c.breaking.Add(c.fence()))
	c.say("Sentinel has promoted %s; the fence is due for %v", promoted, c.fence())
	c.pause(c.term / 2)
	c.crash()
}

// awaitPromotion returns the address of the primary that takes the old one's place.
func (c *chaos) awaitPromotion(sentinel string, old *redistest.Server) (address string) {
	c.T.Helper()
	await.Eventually(c.T, "a replica is promoted", func() bool {
		named, err := testkit.RedisAsk(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.SentinelSet)
		parts, ok := named.([]any)
		if err != nil || !ok || len(parts) != 2 {
			return false
		}
		if address = fmt.Sprint(parts[0], ":", parts[1]); address == old.Address() {
			return false
		}
		role, err := testkit.RedisAsk(address, "ROLE")
		return err == nil && strings.HasPrefix(fmt.Sprint(role), "[master ")
	})
	return address
}

func chaosRedisEmptied(c *chaos) {
	server := c.StartRedis()
	c.start(c.Initialised(server.URL() + c.terms()))
	// The leases are young: were there no fence, they would be in use for long
	// after others have been granted.
	c.pause(c.term / 8)
	c.breaks(server.Kill)
	c.say("killed Redis %s with -9", server.Address())
	empty := time.Now()
	server.Start()
	c.granting(empty.Add(c.fence()))
	c.say("started it again, without data; the fence is due for %v", c.fence())
	c.crash()
	c.pause(c.term / 2)
	c.crash()
}

// down breaks the provider for longer than all leases last, kills daemons meanwhile,
// and mends it.
func (c *chaos) down(how string, breaks func(), again string, mends func()) {
	c.T.Helper()
	c.pause(c.term * 3 / 2)
	c.breaks(breaks)
	c.say("%s", how)
	c.crash()
	c.outage()
	c.crash()
	c.mends(mends)
	c.say("%s", again)
}

func chaosRedisFrozen(c *chaos) {
	server := c.StartRedis()
	c.start(c.Initialised(server.URL() + c.terms()))
	c.down("stopped Redis with SIGSTOP", func() { server.Signal(syscall.SIGSTOP) },
		"sent SIGCONT: it goes on with what it was asked meanwhile", func() { server.Signal(syscall.SIGCONT) })
}

func chaosEtcd(c *chaos) {
	members := etcdtest.Cluster(c.T, 3, "http")
	c.start(etcdURL(members) + "?" + c.terms())
	c.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	c.pause(c.term * 3 / 2)
	members[0].Kill()
	c.say("killed the etcd member %s with -9: two are left", members[0].Client)
	c.crash()
	c.down("killed another etcd member with -9: one is left, no majority", members[1].Kill, "started both again", func() {
		must.Succeed(c.T, members[0].Start())
		must.Succeed(c.T, members[1].Start())
	})
}

func etcdURL(members []*etcdtest.Member) string {
	var clients []string
	for _, m := range members {
		clients = append(clients, m.Client)
	}
	return "etcd://" + strings.Join(clients, ",")
}

func chaosPostgres(c *chaos) {
	server := postgrestest.New(c.T)
	c.start(server.URL(c.terms()))
	c.down("killed PostgreSQL with -9", server.Kill, "started it again: it has forgotten nothing", server.Start)
}

// chaosPostgresFailover has the standby take over the primary's socket, as a virtual
// address would.
func chaosPostgresFailover(c *chaos) {
	primary := postgrestest.New(c.T)
	c.start(primary.URL(c.terms()))
	standby := primary.Standby("standby")
	c.pause(c.term * 3 / 2)
	c.breaks(primary.Kill)
	c.say("killed the primary with -9")
	c.crash()
	primary.LeadTo(standby)
	standby.Promote()
	c.granting(c.breaking.Add(c.fence()))
	c.say("promoted a standby that nobody waited for; the fence is due for %v", c.fence())
	c.pause(c.term / 2)
	c.crash()
}

func chaosLeaseServer(c *chaos) {
	store := []string{"--provider", "sqlite:" + c.Leases() + "?" + c.terms()}
	server := c.StartLeaseServer(testkit.FreeAddress(c.T), store...)
	c.start(server.URL())
	c.down("killed the lease server with -9", server.Kill,
		"started it again, on the same file", func() { c.StartLeaseServer(server.Address, store...) })
}

func chaosTwoLeaseServers(c *chaos) {
	store := []string{"--provider", c.Initialised(c.StartRedis().URL() + c.terms())}
	servers := []*testkit.LeaseServer{c.StartLeaseServer(testkit.FreeAddress(c.T), store...), c.StartLeaseServer(testkit.FreeAddress(c.T), store...)}
	c.start(servers[0].URL() + "," + servers[1].URL())
	c.rng.Shuffle(2, func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	c.pause(c.term * 3 / 2)
	servers[0].Kill()
	c.say("killed the lease server %s with -9: one is left", servers[0].Address)
	c.crash()
	c.down("killed the other one with -9: none is left", servers[1].Kill, "started both again", func() {
		for _, s := range servers {
			c.StartLeaseServer(s.Address, store...)
		}
	})
}
