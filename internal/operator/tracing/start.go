package tracing

import (
	"context"
	"os"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// scope is the instrumentation scope of the spans.
	scope = "github.com/kazahana/kazahana/internal/operator/tracing"
	// quietFor is the time that has one log line about lost spans: a collector that is away
	// would fill the log.
	quietFor = time.Minute
)

// closeTimeout limits the wait for the last spans at the end of the process.
var closeTimeout = 2 * time.Second

// Options are settings that have no OTEL_* variable.
type Options struct {
	Service string // service.name, unless a variable names it
	Version string
	Log     *zap.Logger
}

// Tracing makes and sends spans. A nil *Tracing makes none.
type Tracing struct {
	spans      *sdktrace.TracerProvider
	exporter   *otlptrace.Exporter
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	log        *zap.Logger
}

// Start begins to trace if the environment names a collector. It does not connect
// yet, and never fails: it logs errors.
func Start(o Options) *Tracing {
	t := &Tracing{log: o.Log.With(zap.String("component", "tracing")), propagator: propagation.TraceContext{}}
	env, err := readEnvironment(os.Getenv)
	if err != nil {
		t.log.Warn(err.Error())
	}
	if !env.enabled {
		return nil
	}
	// The library would write to stderr beside the log, and repeat values that may be
	// secrets.
	otel.SetLogger(logr.Discard())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
	for _, name := range insecure { // the endpoint's scheme decides, as in the standard
		_ = os.Unsetenv(name)
	}
	if t.exporter, err = newExporter(env.protocol); err != nil {
		t.log.Error("no traces are sent", zap.Error(err))
		return nil
	}
	t.spans = sdktrace.NewTracerProvider(sdktrace.WithBatcher(t.exporter), sdktrace.WithResource(describe(o)))
	seldom := t.log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, quietFor, 1, 0)
	}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { seldom.Warn("spans could not be sent, and are lost", zap.Error(err)) }))
	t.tracer = t.spans.Tracer(scope, trace.WithInstrumentationVersion(o.Version), trace.WithSchemaURL(semconv.SchemaURL))
	t.log.Info("traces are sent", zap.String("endpoint", env.place), zap.String("protocol", env.protocol))
	return t
}

// With makes spans with a tracer of the caller's, who sends them. A nil tracer makes
// none. The result needs no Close.
func With(tracer trace.Tracer) *Tracing {
	if tracer == nil {
		return nil
	}
	return &Tracing{tracer: tracer, propagator: propagation.TraceContext{}}
}

func newExporter(protocol string) (*otlptrace.Exporter, error) {
	// Neither constructor connects, so the context has no effect.
	if protocol == protocolGRPC {
		return otlptracegrpc.New(context.Background())
	}
	return otlptracehttp.New(context.Background())
}

// describe describes the process. The variables come last, and win.
func describe(o Options) *resource.Resource {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	r, _ := resource.New(context.Background(), // an invalid variable is ignored
		resource.WithTelemetrySDK(),
		resource.WithAttributes(semconv.ServiceName(o.Service), semconv.ServiceVersion(o.Version),
			semconv.HostName(host), semconv.ProcessPID(os.Getpid())),
		resource.WithFromEnv())
	return r
}

// Close sends the remaining spans, for closeTimeout at most.
func (t *Tracing) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := t.spans.Shutdown(ctx); err != nil {
		t.log.Warn("the last spans could not be sent", zap.Error(err))
		_ = t.exporter.Shutdown(ctx) // ends requests under way
	}
}
