package chaos

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// restartStore is a provider that can be broken.
type restartStore struct {
	name string
	// forgets: the provider has no verify, so that a stop releases a lease if it was
	// granted within the last seconds.
	forgets bool
	start   func(s *testkit.Site) restartable
}

// restartable is a provider that runs.
type restartable struct {
	address string                      // host:port; "": a file
	url     func(address string) string // of the provider behind the address
	signal  func(sig syscall.Signal)
}

var restartStores = []restartStore{
	{name: "redis", start: func(s *testkit.Site) restartable {
		r := s.StartRedis()
		url := func(address string) string { return "redis://" + address + "/0" }
		s.Initialised(url(r.Address))
		return restartable{r.Address, url, signals(s, r.Instance)}
	}},
	{name: "etcd", start: func(s *testkit.Site) restartable {
		members := s.StartEtcd()
		url := func(address string) string { return "etcd://" + address }
		return restartable{members[0].Client, url, signals(s, members[0].Instance, members[1].Instance, members[2].Instance)}
	}},
	{name: "lease server", start: func(s *testkit.Site) restartable {
		l := s.StartLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+s.Leases())
		return restartable{l.Address, func(address string) string { return "http://" + address }, signals(s, l.Instance)}
	}},
	{name: "lease server without verify", forgets: true, start: func(s *testkit.Site) restartable {
		seed := s.StartSeedServer()
		return restartable{strings.TrimPrefix(seed.URL, "http://"), func(address string) string { return "http://" + address }, signals(s, seed.Instance)}
	}},
	{name: "sqlite", start: func(s *testkit.Site) restartable {
		return restartable{"", func(string) string { return "sqlite:" + s.Leases() }, func(sig syscall.Signal) {
			if sig == syscall.SIGKILL {
				testkit.Rename(s.T, s.Leases(), s.Leases()+".away")
			} else {
				testkit.LockLeases(s.T, s.Leases())
			}
		}}
	}},
}

func signals(s *testkit.Site, servers ...*testkit.Instance) func(syscall.Signal) {
	return func(sig syscall.Signal) {
		s.T.Helper()
		for _, server := range servers {
			server.Signal(sig)
		}
		if sig == syscall.SIGKILL {
			for _, server := range servers {
				server.AwaitEnd()
			}
		}
	}
}

// restartOutage is what happens to the provider before the daemon ends. Of a file,
// killed is moved away, and frozen is locked by somebody.
type restartOutage struct {
	name string
	sig  syscall.Signal // 0: it works, and its answers come after the daemon has given up
}

var restartOutages = []restartOutage{{"killed", syscall.SIGKILL}, {"frozen", syscall.SIGSTOP}, {"slow", 0}}

// answeredLongAgo is how long after its last answer a provider without verify is
// not taken to be there; the keeper has the limit.
const answeredLongAgo = 11 * time.Second

// TestChaosRestart ends a daemon while its provider is gone, by TERM and by kill -9,
// and starts it again: it goes on with regular IDs under the lease that it had.
func TestChaosRestart(t *testing.T) {
	ring.Deep(t)
	table := &chaosTable{columns: "PROVIDER\tIT IS\tTHE DAEMON GETS\tIDS BEFORE\tIDS AFTER\tNOT REGULAR\tLEASE\tRESULT\t"}
	t.Cleanup(func() {
		slices.Sort(table.rows)
		table.print(t)
	})
	var mu sync.Mutex // of the table
	for _, store := range restartStores {
		for i, outage := range restartOutages {
			for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
				if outage.sig == 0 && store.name == "sqlite" || !*chaosFull && (sig == syscall.SIGKILL || i != len(store.name)%3 || store.forgets) {
					continue
				}
				ends := map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGKILL: "KILL"}[sig]
				t.Run(fmt.Sprintf("%s, %s, %s", store.name, outage.name, ends), func(t *testing.T) {
					t.Parallel()
					row := store.restarted(t, outage, sig)
					mu.Lock()
					defer mu.Unlock()
					table.rows = append(table.rows, fmt.Sprintf("%s\t%s\t%s\t%s", store.name, outage.name, ends, row))
				})
			}
		}
	}
}

// restarted plays one row and returns the rest of its line.
func (store restartStore) restarted(t *testing.T, outage restartOutage, sig syscall.Signal) string {
	t.Helper()
	s := testkit.NewSite(t)
	p := store.start(s)
	address, begin := p.address, func() { p.signal(outage.sig) }
	if outage.sig == 0 {
		between, err := providertest.NewProxy("tcp", p.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(between.Close)
		address, begin = between.Addr(), between.Hold
	}
	const many = 1000
	args := []string{"--provider", p.url(address), "--provider-timeout", "1s", "--startup-wait", "0"}
	d := s.Start(args...)
	c := s.Dial()
	c.AwaitMode("regular")
	before, held := c.IDs(many), c.Lease()
	if store.forgets {
		testkit.Pause(t, answeredLongAgo)
	}
	begin()
	if sig == syscall.SIGKILL {
		d.Kill()
	} else {
		d.Terminate()
	}
	s.Start(args...)
	c = s.Dial()
	after, now := c.IDs(many), c.Lease()
	others := 0
	for _, id := range append(before, after...) {
		if testkit.IsFallback(id) {
			others++
		}
	}
	result, lease := "ok", "the same"
	if now.MachineID != held.MachineID || now.CreatedMS != held.CreatedMS {
		lease = "another"
	}
	if others > 0 || lease != "the same" || !testkit.Ascending(append(before, after...)) {
		result = "VIOLATED"
		t.Errorf("%d IDs are not regular; the lease was %+v, and is %+v\n%s", others, held, now, d.Log)
	}
	return fmt.Sprintf("%d\t%d\t%d\t%s\t%s\t", len(before), len(after), others, lease, result)
}
