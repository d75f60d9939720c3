package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// Daemons would start with the page's example, and it counts right.
func TestChangingExample(t *testing.T) {
	t.Parallel()
	f := &fleet{t: t, home: newSite(t)}
	example := steps(t, "## Words used in the commands", 1)[0]
	for _, url := range []string{"$OLD", "$OLD&$LOW", "$OLD&$HIGH", "$NEW&$LOW", "$NEW&$HIGH", "$NEW"} {
		f.shell(example + `kazahanad serve --check --provider "` + url + `"`)
	}
	machineIDs := provider.DefaultTerms().Range().Count()
	if got, want := f.shell(example+`echo $HALF $ALL $LOW $HIGH`), fmt.Sprintf("%d %d ids=0-%d ids=%d-%d\n", machineIDs/2, machineIDs, machineIDs/2-1, machineIDs/2, machineIDs-1); got != want {
		t.Errorf("the page says %q, want %q", got, want)
	}
}

// The checker of these tests finds the fault: two stores that grant the same machine IDs at the
// same time.
func TestChangingCarelesslyRepeatsIDs(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.restart("site-a", f.sqlite()+"&ids=0-1")
	f.restart("site-b", f.redisNew("redis")+"&ids=0-3")
	await.Eventually(t, "an ID is made twice", func() bool {
		v := f.look()
		return v.twice > 0 && v.shared > 0
	})
}

// redisNew is a server that is declared new.
func (f *fleet) redisNew(name string) string {
	f.t.Helper()
	url := f.redis(name)
	f.home.Kazahanad("leases", "init", "--config", "none", "--provider", url).OK(f.t)
	return url
}

func TestChangingWithoutAPause(t *testing.T) {
	t.Run("SQLite to Redis, after a crash", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, "--fallback", "none")
		f.variables = changingVariables(f.sqlite(), f.redis("redis"))
		f.restart("all", f.variables["OLD"]+"&"+f.variables["HIGH"])
		// After a crash nothing is handed back: the waits have something to wait for.
		blocks := steps(t, "## Another store, without a pause", 7)
		f.crash()
		for _, block := range blocks[:3] {
			f.obey(block)
		}
		f.crash()
		for _, block := range blocks[3:6] {
			f.obey(block)
		}
		testkit.Pause(t, changingDwell)
		f.alwaysRegular(f.settle())
	})
	t.Run("Redis to Redis and back", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, "--fallback", "none")
		f.variables = changingVariables(f.redisNew("old"), f.redis("new"))
		f.restart("all", f.variables["OLD"])
		blocks := steps(t, "## Another store, without a pause", 7)
		for _, block := range append(blocks[:4:4], blocks[6]) {
			f.follow(block)
		}
		f.alwaysRegular(f.settle())
	})
}

func TestChangingWithAPause(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "--fallback", "none")
	f.variables = changingVariables(f.sqlite(), f.redis("redis"))
	f.restart("all", f.variables["OLD"])
	testkit.Pause(t, changingDwell)
	f.crash()
	f.follow(steps(t, "## Another store, with a pause", 1)[0])
	// Then the pool is split between two sites.
	f.variables = changingVariables(f.variables["NEW"], f.redis("new"))
	for _, block := range steps(t, "## One pool, two sites", 2) {
		f.follow(block)
	}
	f.alwaysRegular(f.settle())
}

// backedUp are the variables of a restore.
func (f *fleet) backedUp(old, backup string) {
	f.variables = changingVariables(old, "")
	f.variables["DB"], f.variables["DATA"] = f.home.Leases(), f.home.Path("redis")
	f.variables["BACKUP"] = backup
}

func TestRestoringALeaseFile(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.backedUp(f.sqlite(), f.home.Path("backup.db"))
	f.restart("all", f.variables["OLD"])
	blocks := steps(t, "### A lease file", 3)
	f.follow(blocks[0])
	testkit.Pause(t, changingDwell) // grants that the backup does not know
	f.crash()
	f.follow(blocks[1])
	f.fencedAndBack()
	// A restore that cannot be seen.
	f.crash()
	f.obey(blocks[2])
	f.restart("all", f.variables["OLD"])
	f.fencedAndBack()
	if v := f.settle(); len(v.errs) > 0 {
		t.Errorf("%d requests failed, the first with %s", len(v.errs), v.errs[0])
	}
}

// fencedAndBack returns when the daemons have been told of the fence and are regular
// again.
func (f *fleet) fencedAndBack() {
	f.t.Helper()
	for _, h := range f.hosts {
		h.Dial().AwaitMode("regular")
	}
	testkit.Pause(f.t, changingDwell)
	await.Eventually(f.t, "a daemon is told of the fence", func() bool {
		return slices.ContainsFunc(f.hosts, func(h *host) bool { return strings.Contains(h.daemon.Log.String(), "grants are refused until") })
	})
}

func TestRestoringRedis(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	url := f.redisNew("redis")
	f.backedUp(url, f.home.Path("backup.rdb"))
	f.restart("all", url)
	testkit.Pause(t, changingDwell)
	f.shell(`redis-cli -s "$DATA/s.sock" SAVE | grep -q OK && mv "$DATA/dump.rdb" "$BACKUP"`)
	testkit.Pause(t, changingDwell)
	f.stops["redis"]()
	f.follow(steps(t, "### Redis files", 1)[0])
	f.fencedAndBack()
	if v := f.settle(); len(v.errs) > 0 {
		t.Errorf("%d requests failed, the first with %s", len(v.errs), v.errs[0])
	}
}
