package embed

import (
	"context"
	"fmt"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/keeper"
)

const (
	// MaxBatch is the largest count of one NextIDs or NextSequences.
	MaxBatch = 65_536
	// DefaultTimeout is how long a request for IDs waits at most. A context that ends
	// earlier ends the wait earlier.
	DefaultTimeout = 10 * time.Second
)

// StringGenerator makes unique strings. *Generator and UUIDs are such.
type StringGenerator interface {
	NextString(ctx context.Context) (string, error)
}

// Int64Generator makes unique numbers that ascend. *Generator is one.
type Int64Generator interface {
	StringGenerator
	NextID(ctx context.Context) (int64, error)
	NextIDs(ctx context.Context, n int) ([]int64, error)
}

// SequenceGenerator counts: 1, 2, 3, ... for each key. *Generator is one.
type SequenceGenerator interface {
	NextSequence(ctx context.Context, key string, opts ...SequenceOption) (int64, error)
	NextSequences(ctx context.Context, key string, n int, opts ...SequenceOption) ([]int64, error)
}

var (
	_ Int64Generator    = (*Generator)(nil)
	_ SequenceGenerator = (*Generator)(nil)
)

// Generator makes the IDs of a process. It is safe for concurrent use.
type Generator struct {
	issuer  *issuer.Issuer
	service *issuer.Service
	stream  *generator.Generator
	metrics metric.Registration

	life context.Context // ends with Close
	stop context.CancelFunc
	done chan struct{} // closed when nothing runs in the background any more

	mu     sync.RWMutex // held for reading by calls of the store
	closed bool         // guarded by mu
	err    error        // of Close; guarded by mu
}

// Open takes the state directory, and begins to lease a machine ID in the background. It
// does not wait for the lease: the first requests do, for Config.StartupWait. For a quarter
// of a second at most it asks the provider whether its store contradicts the Config. A
// provider that cannot be reached is no error.
//
// ctx is for Open alone: it ends the wait for a process that was killed and has not yet let
// go of the live state. Close ends the Generator.
//
// Errors: *StateInUseError; *StateError about a file or a directory of the state;
// *ConfigError, also where the provider's store contradicts the configuration.
func Open(ctx context.Context, c Config, opts ...Option) (*Generator, error) {
	settings, err := c.settings()
	if err != nil {
		return nil, &ConfigError{err}
	}
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	watch, err := newWatch(o.meter, settings.DefaultService)
	if err != nil {
		return nil, fmt.Errorf("embed: the meter: %w", err)
	}
	log := o.log()
	made, err := issuer.Open(ctx, issuer.Options{
		Settings: settings, Version: version(), Log: log, Tracing: o.tracing(),
		Observer:    func(string) keeper.Observer { return watch },
		StateFailed: watch.StateFailed, ClockEvent: watch.clockEvent, Wall: o.wall,
	})
	if err != nil {
		return nil, openError(err)
	}
	g := &Generator{issuer: made, service: made.Services[settings.DefaultService], done: make(chan struct{})}
	g.stream = g.service.Generator()
	if g.metrics, err = watch.register(g.service); err != nil {
		made.Close()
		return nil, fmt.Errorf("embed: the meter: %w", err)
	}
	made.AnnounceScope(log.With(zap.String("component", "embed")))
	g.life, g.stop = context.WithCancel(context.Background())
	go func() {
		defer close(g.done)
		_ = made.Run(g.life) // returns nil
	}()
	return g, nil
}

// NextID returns an ID: positive, and greater than all that this state directory made
// before. It reads memory only. It waits where the clock went back, where the
// millisecond's IDs are used up, and at the start for the first lease: until ctx ends, and
// for DefaultTimeout at most.
//
// Errors: *ClockBackwardError; *LeaseAcquisitionError and ErrNoProvider where no fallback
// is allowed; *TimeoutError; ErrTimestampOverflow; ErrClosed; ctx's error.
func (g *Generator) NextID(ctx context.Context) (int64, error) {
	if id, ok := g.stream.One(); ok {
		return int64(id), nil
	}
	ranges, err := g.next(ctx, 1)
	if err != nil {
		return 0, err
	}
	return int64(ranges[0].Start), nil
}

// NextIDs returns n IDs in ascending order; n is 1 to MaxBatch. Its errors are those of
// NextID, and ErrInvalidParams for another n.
func (g *Generator) NextIDs(ctx context.Context, n int) ([]int64, error) {
	if n < 1 || n > MaxBatch {
		return nil, outOfRange(n)
	}
	ranges, err := g.next(ctx, int64(n))
	if err != nil {
		return nil, err
	}
	ids := make([]int64, 0, n)
	for _, r := range ranges {
		for i := range r.Count {
			ids = append(ids, int64(r.Start)+i)
		}
	}
	return ids, nil
}

// NextString is NextID in decimal.
func (g *Generator) NextString(ctx context.Context) (string, error) {
	id, err := g.NextID(ctx)
	if err != nil {
		return "", err
	}
	return strconv.FormatInt(id, 10), nil
}

func (g *Generator) next(ctx context.Context, n int64) ([]generator.Range, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ranges, err := g.stream.Next(ctx, generator.Request{Count: n, Timeout: DefaultTimeout}, nil)
	if err != nil {
		return nil, idError(err)
	}
	return ranges, nil
}

// Close fails requests under way with ErrClosed, hands the leases back where the provider
// has answered a moment before, and gives up the state directory. It waits for all of
// that, a few seconds at most: after a disk or a provider that does not answer, a warning
// in the log says so, and nothing is lost. Closing again does nothing and returns the same.
func (g *Generator) Close() error {
	g.stop() // calls of the store end
	g.stream.Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return g.err
	}
	g.closed = true
	<-g.done
	g.err = g.metrics.Unregister()
	g.issuer.Close()
	return g.err
}

const modulePath = "github.com/kazahana/kazahana"

// version is this module's, for the meta of leases.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == modulePath && m.Version != "" {
				return "embed " + m.Version
			}
		}
	}
	return "embed"
}
