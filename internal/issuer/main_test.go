package issuer

import (
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

// startMS is what the clock shows when a test begins.
const startMS = snowflake.DefaultEpochMS + 150*24*60*60*1000

// settings are a service's with nothing left to chance.
func settings() config.Service {
	return config.Service{
		MaxThroughputPerMS: 1 << snowflake.DefaultBitSeq, Fallback: config.FallbackCachedRandom, SequenceStart: config.SequenceZero,
		StartupWait: time.Hour, MaxBackward: 5 * time.Second,
		AcquireRetryInterval: time.Second, AcquireRetryMaxInterval: time.Minute,
		BitTS: snowflake.DefaultBitTS, DefaultEpoch: time.UnixMilli(snowflake.DefaultEpochMS),
	}
}

// newService is a service on a memory provider, and on a state in memory if st is nil.
// Its keeper takes its due steps at each Step.
func newService(t *testing.T, terms provider.Terms, st *state.Service) *Service {
	t.Helper()
	believed := clock.NewBelieved(clock.NewFake(startMS), clock.Config{MaxForward: time.Second, Hold: time.Minute})
	p, err := providertest.OverMemory(memory.New(believed.NowMS), provider.Services{Default: terms})
	must.Succeed(t, err)
	if st == nil {
		if st, err = state.Ephemeral(state.Options{}).Service("default"); err != nil {
			t.Fatal(err)
		}
	}
	svc, err := NewService(ServiceOptions{
		Name: "default", Settings: settings(), ProviderTimeout: time.Minute, VerifyInterval: time.Minute, Provider: p, State: st,
		Clock: believed, Observer: metrics.New(metrics.Build{}).Service("default"), Log: zap.NewNop(),
	})
	must.Succeed(t, err)
	t.Cleanup(func() { svc.Close(t.Context()) })
	return svc
}
