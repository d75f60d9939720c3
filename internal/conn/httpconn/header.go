package httpconn

import (
	"context"
	"net/http"
)

type headerKey struct{}

// WithHeader makes calls under the context send these headers too, such as the traceparent
// of a trace.
func WithHeader(ctx context.Context, h http.Header) context.Context {
	return context.WithValue(ctx, headerKey{}, h)
}

// addHeader adds the headers of WithHeader.
func addHeader(ctx context.Context, to http.Header) {
	h, _ := ctx.Value(headerKey{}).(http.Header)
	for name, values := range h {
		to[http.CanonicalHeaderKey(name)] = values
	}
}
