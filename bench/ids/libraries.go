//go:build linux

package ids

import (
	"context"
	"errors"
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

// libraryMicros are ways to make IDs inside a Go program. Each library has so many
// sequence numbers in a millisecond that none of them waits for the next one.
var libraryMicros = []micro{
	{embedOne, "ns/ID", report.Nanoseconds, 1, 0, embedded(1)},
	{embedMany, "ns/ID", report.Nanoseconds, embedBatch, 0, embedded(embedBatch)},
	{sonyOne, "ns/ID", report.Nanoseconds, 1, 0, sony},
	{bwmarrinID, "ns/ID", report.Nanoseconds, 1, 0, bwmarrinNode},
	{uuidV7, "ns/ID", report.Nanoseconds, 1, 0, uuids},
}

const embedBatch = 100

// Bounds of the ratios of NextID of embed to the others. sonyflake and bwmarrin/snowflake
// keep no mark and lease nothing.
const (
	overSony = 1.5
	overUUID = 0.5
)

func librariesRow() row {
	r := inProcessRow(librariesKey, "embed and other Go libraries in process: time and allocations per ID",
		fmt.Sprintf("in process, one goroutine, one call for each ID; embed with its own state, on a SQLite provider, with leases for %d IDs per millisecond; "+
			"sonyflake with a time unit of 1 ms and %d bits of sequence, bwmarrin/snowflake with %d: as shipped, they wait after 256 IDs in 10 ms and after 4,096 in 1 ms, "+
			"and embed after 256 in 1 ms", throughput, sonyBits, bwmarrinBits))
	one := micro{title: embedOne, measure: "ns/ID"}.time()
	for _, other := range []struct {
		title string
		bound float64
	}{{sonyOne, overSony}, {uuidV7, overUUID}} {
		r.ratio(embedOne, "time / "+other.title, one, micro{title: other.title, measure: "ns/ID"}.time(), other.bound, true)
	}
	return r
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
