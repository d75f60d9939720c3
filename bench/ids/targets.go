//go:build linux

package ids

import "github.com/kazahana/kazahana/bench/report"

// targets are the promises, in the order of the rows.
func targets() []report.Target {
	all := generatorTargets()
	all = append(all, socketTargets()...)
	all = append(all, leasesTargets()...)
	all = append(all, growthTargets()...)
	all = append(all,
		target(startKey, "start", "ms, fresh directory", quantityFresh).atMost(60e6, report.Milliseconds),
		target(startKey, "start", "ms, after a stop", quantityStopped).atMost(60e6, report.Milliseconds),
		target(startKey, "start", "ms, after kill -9", quantityKilled).atMost(60e6, report.Milliseconds),
		target(quietKey, "quiet", "p99.9 disturbed / calm", quantityDisturbed).over(kazahanad, quantityCalm).atMost(1.2, report.Ratio),
		target(rendezvousKey, rendezvousTitle(rendezvousBound), "µs/lookup", quantityLookup(rendezvousBound)).atMost(20e3, report.Microseconds),
		target(rendezvousKey, rendezvousTitle(rendezvousBound), "allocations", quantityLookupAllocations).atMost(0, report.Whole).certain(),
		target(placementKey, titleRemote, "p50 / Ping", quantityRemote).over(kazahanad, quantityPing).atMost(1.5, report.Ratio),
		target(placementKey, titleActive, "p50 / Ping", quantityActive).over(kazahanad, quantityPing).atMost(1.5, report.Ratio),
		target(actorsKey, actorsTitle, "MiB", quantityActors).atMost(200<<20, report.MiB),
		target(memoryKey, "memory", "MiB after the load", quantityLoaded).atMost(24<<20, report.MiB),
		target(memoryKey, "memory", "MiB more, 10,000 connections", quantityMore).atMost(16<<20, report.MiB),
	)
	var built []report.Target
	for _, t := range all {
		built = append(built, report.Target(t))
	}
	return built
}

func generatorTargets() (all []promise) {
	for _, g := range generatorBenchmarks {
		all = append(all,
			target(generatorKey, g.title, "ns/ID", g.time()).atMost(g.bound, report.Nanoseconds),
			target(generatorKey, g.title, "allocations", g.allocations()).atMost(0, report.Whole).certain())
	}
	return all
}

func socketTargets() []promise {
	rate := func(key string, to string, bound float64) promise {
		return target(key, titleOf(key), "rate / "+to, quantityRate).over(to, quantityRate).atLeast(bound, report.Ratio)
	}
	// What INCRBY 100 hands out is what both rows of batches are compared with.
	batches := func(key string, bound float64) promise {
		t := target(key, titleOf(key), "IDs/s / Redis INCRBY 100", quantityRate).over(redis, quantityRate)
		t.To.Row = "batch100"
		return t.atLeast(bound, report.Ratio)
	}
	return []promise{
		rate("1", goEcho, 1.25),
		rate("1", cEcho, 0.90),
		target("1", titleOf("1"), "p99 / "+goEcho, quantityP99).over(goEcho, quantityP99).atMost(0.55, report.Ratio),
		rate("1", redis, 1.15),
		rate("8", goEcho, 1.25),
		rate("64", goEcho, 1.30),
		rate("64", cEcho, 0.88),
		rate("64", redis, 1.05),
		rate("pipelined", redis, 1.8),
		rate("pipelined", goEcho, 0.85),
		batches("batch100", 0.95),
		batches("batch1000", 7),
	}
}

func leasesTargets() []promise {
	return []promise{
		target(leasesKey, leasesWork, "IDs given of the lease's", quantityOfLease).atLeast(0.99, report.Percent),
		target(leasesKey, leasesWork, "daemon's share of a core", quantityBusyCPU).atMost(0.30, report.Percent),
		target(leasesKey, leasesWork, "the same, nobody asks", quantityIdleCPU).atMost(0.01, report.FinePercent),
	}
}

func growthTargets() (all []promise) {
	for _, active := range growthActive {
		all = append(all, target(growthKey, "growth: "+connectionsTitle(active), "rate beside 10,000 idle / alone", quantityAmong(active)).
			over(kazahanad, quantityAlone(active)).atLeast(0.95, report.Ratio))
	}
	for _, throughput := range growthThroughputs {
		all = append(all, target(growthKey, "growth: "+leasesTitle(throughput), "of leases or core, the nearer limit", quantityNearer(throughput/leaseIDs)).
			atLeast(0.95, report.Percent))
	}
	return all
}

// promise is a target under construction.
type promise report.Target

// target begins one about a quantity of the daemon.
func target(row, work, criterion, quantity string) promise {
	return promise{Work: work, Criterion: criterion, Of: report.Series{Row: row, Subject: kazahanad, Quantity: quantity}}
}

// over makes it one about the ratio to another quantity of the same row.
func (t promise) over(subject, quantity string) promise {
	t.To = report.Series{Row: t.Of.Row, Subject: subject, Quantity: quantity}
	return t
}

func (t promise) atLeast(bound float64, format func(float64) string) promise {
	t.Bound, t.Format = bound, format
	return t
}

func (t promise) atMost(bound float64, format func(float64) string) promise {
	t.Bound, t.Format, t.AtMost = bound, format, true
	return t
}

func (t promise) certain() promise {
	t.Certain = true
	return t
}

func titleOf(key string) string {
	for _, w := range workloads {
		if w.key == key {
			return w.title
		}
	}
	panic("bench: there is no row " + key)
}
