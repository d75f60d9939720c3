package tracing

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
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
	place, err := endpoint(os.Getenv)
	if err != nil {
		t.log.Warn(err.Error())
	}
	if place == "" {
		return nil
	}
	// The library would write to stderr beside the log, and repeat values that may be
	// secrets.
	otel.SetLogger(logr.Discard())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
	if t.exporter, err = otlptracehttp.New(context.Background()); err != nil { // which does not connect
		t.log.Error("no traces are sent", zap.Error(err))
		return nil
	}
	t.spans = sdktrace.NewTracerProvider(sdktrace.WithBatcher(t.exporter), sdktrace.WithResource(describe(o)))
	seldom := t.log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, quietFor, 1, 0)
	}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { seldom.Warn("spans could not be sent, and are lost", zap.Error(err)) }))
	t.tracer = t.spans.Tracer(scope, trace.WithInstrumentationVersion(o.Version), trace.WithSchemaURL(semconv.SchemaURL))
	t.log.Info("traces are sent", zap.String("endpoint", place))
	return t
}

// endpoint reads the variables that say whether traces are sent, and where: to a place that the
// log may show. "" is nowhere. The library reads all others. As the standard demands, an invalid
// value is ignored: these variables are often set for a whole fleet.
func endpoint(lookup func(string) string) (place string, err error) {
	get := func(name string) string { return strings.TrimSpace(lookup(name)) }
	at := cmp.Or(get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), get("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if at == "" || strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") || strings.Contains(get("OTEL_TRACES_EXPORTER"), "none") {
		return "", nil
	}
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", errors.New("no traces are sent: the endpoint in OTEL_EXPORTER_OTLP_ENDPOINT or " +
			"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is a URL like http://localhost:4318")
	}
	return u.Scheme + "://" + u.Host + u.Path, nil
}

// With makes spans with a tracer of the caller's, who sends them. A nil tracer makes
// none. The result needs no Close.
func With(tracer trace.Tracer) *Tracing {
	if tracer == nil {
		return nil
	}
	return &Tracing{tracer: tracer, propagator: propagation.TraceContext{}}
}

// describe describes the process. The variables come last, and win.
func describe(o Options) *resource.Resource {
	r, _ := resource.New(context.Background(), // an invalid variable is ignored
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(),
		resource.WithAttributes(semconv.ServiceName(o.Service), semconv.ServiceVersion(o.Version)),
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
