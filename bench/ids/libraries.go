//go:build linux

package ids

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	bwmarrin "github.com/bwmarrin/snowflake"
	"github.com/google/uuid"
	"github.com/sony/sonyflake/v2"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/embed"
)

const librariesKey = "libraries"

const (
	embedOne   = "embed, NextID"
	embedMany  = "embed, NextIDs(100)"
	sonyOne    = "sonyflake v2, NextID"
	bwmarrinID = "bwmarrin/snowflake, Generate"
	uuidV7     = "google/uuid, NewV7"
)

// libraries are ways to make IDs inside a Go program. Each has so many sequence numbers in a
// millisecond that none of them waits for the next one.
var libraries = []struct {
	title string
	per   int // IDs in a call
	run   func() (testing.BenchmarkResult, error)
}{
	{embedOne, 1, embedded(1)},
	{embedMany, embedBatch, embedded(embedBatch)},
	{sonyOne, 1, sony},
	{bwmarrinID, 1, bwmarrinNode},
	{uuidV7, 1, uuids},
}

const embedBatch = 100

// Bounds of the ratios of NextID of embed to the others. sonyflake and bwmarrin/snowflake
// keep no mark and lease nothing.
const (
	overSony = 1.5
	overUUID = 0.5
)

// allocations is the quantity beside a library's time, which has its title.
func allocations(title string) string { return title + ", allocations" }

func librariesRow() row {
	// Each benchmark takes about twice its time: it works its way up to it.
	each := func(p plan) time.Duration { return p.Duration / 4 }
	total := func(p plan) time.Duration { return time.Duration(2*len(libraries)) * each(p) }
	r := row{
		key: librariesKey, help: "embed and other Go libraries in process: time and allocations per ID",
		note: fmt.Sprintf("in process, one goroutine, one call for each ID; embed with its own state, on a SQLite provider, with leases for %d IDs per millisecond; "+
			"sonyflake with a time unit of 1 ms and %d bits of sequence, bwmarrin/snowflake with %d: as shipped, they wait after 256 IDs in 10 ms and after 4,096 in 1 ms, "+
			"and embed after 256 in 1 ms", throughput, sonyBits, bwmarrinBits),
		takes: func(p plan, _ int) time.Duration { return total(p) },
		measure: func(ctx context.Context, b *bench) error {
			measured := map[string]float64{}
			err := b.launch.Ask(ctx, 2*total(b.plan)+patience, &measured, arguments("libraries", each(b.plan))...)
			for quantity, value := range measured {
				b.add(librariesKey, kazahanad, quantity, value)
			}
			return err
		},
	}
	for _, l := range libraries {
		r.shows(l.title, l.title, "ns/ID", report.Nanoseconds)
		r.shows(l.title, allocations(l.title), "allocations", report.Whole)
	}
	for _, other := range []struct {
		title string
		bound float64
	}{{sonyOne, overSony}, {uuidV7, overUUID}} {
		r.promise(embedOne, "time / "+other.title, embedOne, report.Series{Row: librariesKey, Subject: kazahanad, Quantity: other.title}, other.bound, true, report.Ratio)
	}
	return r
}

// librariesMain is the part libraries. The duration is that of each benchmark.
func librariesMain(duration time.Duration) error {
	testing.Init()
	if err := flag.Set("test.benchtime", duration.String()); err != nil {
		return err
	}
	measured := map[string]float64{}
	for _, l := range libraries {
		result, err := l.run()
		if err != nil {
			return err
		}
		measured[l.title] = float64(result.T.Nanoseconds()) / float64(result.N) / float64(l.per)
		measured[allocations(l.title)] = float64(result.AllocsPerOp())
	}
	return json.NewEncoder(os.Stdout).Encode(measured)
}

const sonyBits, bwmarrinBits = 16, 18

// generate measures next, which returns ascending IDs.
func generate(next func() (int64, error)) (result testing.BenchmarkResult, failed error) {
	result = testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		last := int64(0)
		for b.Loop() {
			id, err := next()
			if err == nil && id <= last {
				err = errors.New("an ID is not above the one before it")
			}
			if err != nil {
				failed = err
				return
			}
			last = id
		}
	})
	return result, failed
}

func embedded(count int) func() (testing.BenchmarkResult, error) {
	return func() (result testing.BenchmarkResult, err error) {
		dir, err := os.MkdirTemp("", "kz-embed-")
		if err != nil {
			return result, err
		}
		defer os.RemoveAll(dir)
		ctx := context.Background()
		g, err := embed.Open(ctx, embed.Config{
			StateDir: filepath.Join(dir, "state"), Provider: "sqlite:" + filepath.Join(dir, "leases.db") + "?" + wideLayout,
			MaxThroughputPerMS: throughput, Fallback: embed.NoFallback, StartupWait: startLimit,
		})
		if err != nil {
			return result, err
		}
		defer func() { err = errors.Join(err, g.Close()) }()
		if _, err := g.NextID(ctx); err != nil { // after the first lease
			return result, err
		}
		for end := time.Now().Add(startLimit); g.Status().Throughput < throughput; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return result, fmt.Errorf("embed: leases for %d of %d IDs per millisecond", g.Status().Throughput, throughput)
			}
		}
		if count == 1 {
			return generate(func() (int64, error) { return g.NextID(ctx) })
		}
		return generate(func() (int64, error) {
			ids, err := g.NextIDs(ctx, count)
			if err != nil {
				return 0, err
			}
			return ids[0], nil
		})
	}
}

func sony() (testing.BenchmarkResult, error) {
	s, err := sonyflake.New(sonyflake.Settings{
		TimeUnit: time.Millisecond, BitsSequence: sonyBits, BitsMachineID: 14, StartTime: time.Now().Add(-time.Hour),
		MachineID: func() (int, error) { return 1, nil },
	})
	if err != nil {
		return testing.BenchmarkResult{}, err
	}
	return generate(s.NextID)
}

func bwmarrinNode() (testing.BenchmarkResult, error) {
	bwmarrin.StepBits, bwmarrin.NodeBits = bwmarrinBits, 22-bwmarrinBits
	n, err := bwmarrin.NewNode(1)
	if err != nil {
		return testing.BenchmarkResult{}, err
	}
	return generate(func() (int64, error) { return int64(n.Generate()), nil })
}

// uuids keeps the last UUID, so that none is optimised away.
func uuids() (result testing.BenchmarkResult, failed error) {
	var last uuid.UUID
	result = testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if last, failed = uuid.NewV7(); failed != nil {
				return
			}
		}
	})
	if last == (uuid.UUID{}) && failed == nil {
		failed = errors.New("google/uuid: no UUID")
	}
	return result, failed
}
