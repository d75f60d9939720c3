package tracing

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/storecall"
)

// Attributes for which there is no standard name.
const (
	keyResult  = attribute.Key("kazahana.result")  // the result in one word
	keyService = attribute.Key("kazahana.service") // the service of the leases
	keyLeases  = attribute.Key("kazahana.leases")  // number of leases
	keyIDs     = attribute.Key("kazahana.machine_ids")
	keyToken   = attribute.Key("kazahana.fencing_token")
	keyCount   = attribute.Key("kazahana.sequence.count") // number of requested values
	keyTTL     = attribute.Key("kazahana.lock.ttl_ms")
)

// maxIDs is how many machine IDs a span lists.
const maxIDs = 16

// target describes the server of the calls by the standard attributes.
func target(rawURL string) []attribute.KeyValue {
	scheme, rest, _ := strings.Cut(rawURL, ":")
	system := scheme
	switch {
	case strings.HasPrefix(scheme, "redis"):
		system = semconv.DBSystemNameRedis.Value.AsString()
	case scheme == "http", scheme == "https":
		system = ""
	}
	var all []attribute.KeyValue
	if system != "" {
		all = append(all, semconv.DBSystemNameKey.String(system))
	}
	authority, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return all // a file, or nothing outside the process
	}
	if end := strings.IndexAny(authority, "/?,"); end >= 0 { // of several, the first
		authority = authority[:end]
	}
	u := url.URL{Host: authority}
	all = append(all, semconv.ServerAddress(u.Hostname()))
	if port, err := strconv.Atoi(u.Port()); err == nil {
		all = append(all, semconv.ServerPort(port))
	}
	return all
}

// call begins the span of a call that leaves the process. Requests to a lease server
// carry the span's context.
func (t *Tracing) call(ctx context.Context, name string, attributes ...attribute.KeyValue) context.Context {
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	if !span.SpanContext().IsValid() {
		return ctx
	}
	header := propagation.HeaderCarrier{}
	t.propagator.Inject(ctx, header)
	return httpconn.WithHeader(ctx, http.Header(header))
}

// finish ends the span of ctx. A refusal is not a failure: the store has done its
// work. The text gives the reason of a failure and must not contain a key.
func finish(ctx context.Context, result string, failed bool, text string, attributes ...attribute.KeyValue) {
	span := trace.SpanFromContext(ctx)
	if span.IsRecording() {
		span.SetAttributes(keyResult.String(result))
		span.SetAttributes(attributes...)
		if failed {
			span.SetAttributes(semconv.ErrorTypeKey.String(result))
			span.SetStatus(codes.Error, text)
		}
	}
	span.End()
}

// Locks traces the store at the URL.
func (t *Tracing) Locks(s lock.Store, at string) lock.Store {
	if t == nil {
		return s
	}
	where := target(at)
	return lock.Observed(s, lock.Observer{
		Before: func(ctx context.Context, name string, r lock.Request) context.Context {
			attributes := append(where[:len(where):len(where)], semconv.DBOperationName(name))
			if r.TTLMS > 0 {
				attributes = append(attributes, keyTTL.Int64(r.TTLMS))
			}
			return t.call(ctx, "lock store "+name, attributes...)
		},
		After: func(ctx context.Context, o lock.Operation) {
			result := lock.Outcome(o.Err)
			var more []attribute.KeyValue
			if o.Answer.Token > 0 {
				more = append(more, keyToken.Int64(o.Answer.Token))
			}
			finish(ctx, result, storecall.Failed(result), result, more...)
		},
	})
}

// Sequences traces the store at the URL.
func (t *Tracing) Sequences(s sequence.Store, at string) sequence.Store {
	if t == nil {
		return s
	}
	where := target(at)
	return sequence.Observed(s, sequence.Observer{
		Before: func(ctx context.Context, name string, r sequence.Request) context.Context {
			attributes := append(where[:len(where):len(where)], semconv.DBOperationName(name))
			if r.Count > 0 {
				attributes = append(attributes, keyCount.Int(r.Count))
			}
			return t.call(ctx, "sequence store "+name, attributes...)
		},
		After: func(ctx context.Context, o sequence.Operation) {
			result := sequence.Outcome(o.Err)
			finish(ctx, result, storecall.Failed(result), result)
		},
	})
}

// providerOutcome is the result of a provider call in one word, and whether the
// provider failed.
func providerOutcome(err error) (word string, failed bool) {
	var full *provider.FullError
	var fenced *provider.FencedError
	var busy *provider.BusyError
	switch {
	case err == nil:
		return "ok", false
	case errors.As(err, &full):
		return "full", false
	case errors.As(err, &fenced):
		return "fenced", false
	case errors.As(err, &busy):
		return "busy", false
	case errors.Is(err, provider.ErrConflict):
		return "conflict", false
	case errors.Is(err, provider.ErrInvalid), errors.Is(err, provider.ErrNotFound), errors.Is(err, provider.ErrBadSignature),
		errors.Is(err, provider.ErrTimestampSkew), errors.Is(err, provider.ErrNone), errors.Is(err, errors.ErrUnsupported):
		return "refused", false
	}
	word = storecall.Failure(err)
	return word, storecall.Failed(word)
}
