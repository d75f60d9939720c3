package embed

import (
	"log/slog"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/operator/tracing"
)

// An Option of Open gives the Generator something to report to.
type Option func(*options)

type options struct {
	logger *slog.Logger
	meter  metric.Meter
	tracer trace.Tracer
	wall   clock.Source // nil: the host's clock; tests set another
}

// WithLogger makes the Generator log the events of docs/logs.md: the grant and the loss of
// leases, every change between regular and fallback IDs, and failures. No request logs. Without
// it nothing is logged; Status has the present state.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// WithMeter makes the Generator count with OpenTelemetry. The instruments have the names
// of the daemon's metrics with dots, such as kazahana.ids.issued, so that an exporter to
// Prometheus makes the series that the daemon has. IDs are counted without cost: the
// meter reads the counts when it collects.
func WithMeter(m metric.Meter) Option { return func(o *options) { o.meter = m } }

// WithTracer makes spans of the calls that leave the process: of the provider, in the
// background, and of sequences, as children of the caller's span. Requests for IDs make
// none.
func WithTracer(t trace.Tracer) Option { return func(o *options) { o.tracer = t } }

func (o *options) log() *zap.Logger {
	if o.logger == nil {
		return zap.NewNop()
	}
	return zap.New(logTo{o.logger.Handler()})
}

func (o *options) tracing() *tracing.Tracing { return tracing.With(o.tracer) }
