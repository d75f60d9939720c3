package tracing

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// untraced are the paths that probes and scrapers poll every few seconds.
var untraced = []string{"/healthz", "/readyz", "/metrics", "/{$}", "/"}

// Route traces the HTTP requests of a route, as parts of the caller's traces. The
// pattern is one of http.ServeMux.
func (t *Tracing) Route(pattern string, next http.HandlerFunc) http.HandlerFunc {
	method, path, ok := strings.Cut(pattern, " ")
	if t == nil || !ok {
		return next
	}
	if slices.Contains(untraced, path) {
		return next
	}
	return func(w http.ResponseWriter, r *http.Request) {
		ctx := t.propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.tracer.Start(ctx, pattern, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(requestAttributes(method, path, r)...))
		defer span.End()
		out := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next(out, r.WithContext(ctx))
		span.SetAttributes(semconv.HTTPResponseStatusCode(out.status))
		if out.status >= http.StatusInternalServerError {
			span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(out.status)))
			span.SetStatus(codes.Error, "")
		}
	}
}

// requestAttributes name the route instead of the path, which may contain a key.
func requestAttributes(method, route string, r *http.Request) []attribute.KeyValue {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	all := []attribute.KeyValue{
		semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(route), semconv.URLScheme(scheme),
		semconv.NetworkProtocolVersion(strings.TrimPrefix(r.Proto, "HTTP/")),
	}
	if host, port, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		all = append(all, semconv.NetworkPeerAddress(host))
		if n, err := strconv.Atoi(port); err == nil {
			all = append(all, semconv.NetworkPeerPort(n))
		}
	}
	if agent := r.UserAgent(); agent != "" {
		all = append(all, semconv.UserAgentOriginal(agent))
	}
	return all
}

// statusWriter remembers the status of the answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

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
