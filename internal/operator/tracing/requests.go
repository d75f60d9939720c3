package tracing

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// untraced are the paths that probes and scrapers poll every few seconds.
var untraced = []string{"/healthz", "/readyz", "/metrics", "/{$}", "/"}

// Route traces the HTTP requests of a route, as parts of the caller's traces. The
// pattern is one of http.ServeMux, and next returns the status of its answer.
func (t *Tracing) Route(pattern string, next func(http.ResponseWriter, *http.Request) int) func(http.ResponseWriter, *http.Request) int {
	method, path, ok := strings.Cut(pattern, " ")
	if t == nil || !ok || slices.Contains(untraced, path) {
		return next
	}
	// The path may contain a key, and the other headers are the peer's own words.
	attributes := trace.WithAttributes(semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(path))
	return func(w http.ResponseWriter, r *http.Request) (status int) {
		ctx := t.propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.tracer.Start(ctx, pattern, trace.WithSpanKind(trace.SpanKindServer), attributes)
		defer span.End()
		status = next(w, r.WithContext(ctx))
		span.SetAttributes(semconv.HTTPResponseStatusCode(status))
		if status >= http.StatusInternalServerError {
			span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(status)))
			span.SetStatus(codes.Error, "")
		}
		return status
	}
}

// Method returns a function that begins the span of a request on the socket, or nil
// without tracing. The function returns the request's context, and a function that
// ends the span with the code of the answer; "" if the caller did not wait for it.
func (t *Tracing) Method() func(ctx context.Context, method string) (context.Context, func(code string)) {
	if t == nil {
		return nil
	}
	return func(ctx context.Context, method string) (context.Context, func(code string)) {
		ctx, span := t.tracer.Start(ctx, method, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
			semconv.RPCSystemNameKey.String("msgpack-rpc"), semconv.RPCMethod(method), semconv.NetworkTransportUnix))
		return ctx, func(code string) {
			if code != "" {
				span.SetAttributes(semconv.RPCResponseStatusCode(code))
			}
			if code == "STORE_UNAVAILABLE" || code == "INTERNAL" {
				span.SetAttributes(semconv.ErrorTypeKey.String(code))
				span.SetStatus(codes.Error, "")
			}
			span.End()
		}
	}
}
