package chaos

import (
	"strings"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func chaosRedisFailover(c *chaos) {
	primary := c.StartRedis()
	_, port, _ := strings.Cut(primary.Address, ":")
	for range 2 {
		c.StartRedis("--replicaof", "127.0.0.1 "+port)
	}
	sentinels := c.StartSentinels(primary, 2)
	c.start(c.Initialised("redis+sentinel://" + strings.Join(sentinels, ",") + "/" + redistest.SentinelSet + "/0?min_replicas=1&" + c.terms()))
	c.pause(c.term * 3 / 2)
	redistest.Impatient(c.T, sentinels)
	c.breaks(primary.Kill)
	c.say("killed the primary %s with -9", primary.Address)
	c.crash()
	promoted := c.AwaitPromotion(sentinels[0], primary)
	// The fence begins with the first acquire, some time after the death.
	c.granting(c.breaking.Add(c.fence()))
	c.say("Sentinel has promoted %s; the fence is due for %v", promoted, c.fence())
	c.pause(c.term / 2)
	c.crash()
}

func chaosRedisEmptied(c *chaos) {
	server := c.StartRedis()
	c.start(c.Initialised(server.URL() + c.terms()))
	// The leases are young: were there no fence, they would be in use for long
	// after others have been granted.
	c.pause(c.term / 8)
	c.breaks(server.Kill)
	c.say("killed Redis %s with -9", server.Address)
	empty := time.Now()
	c.RunRedis(server)
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
	members := c.StartEtcd()
	c.start(c.EtcdURL(members) + "?" + c.terms())
	c.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	c.pause(c.term * 3 / 2)
	members[0].Kill()
	c.say("killed the etcd member %s with -9: two are left", members[0].Client)
	c.crash()
	c.down("killed another etcd member with -9: one is left, no majority", members[1].Kill, "started both again", func() {
		c.RunEtcd(members[0])
		c.RunEtcd(members[1])
	})
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
	standby.TakeOver(primary)
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
