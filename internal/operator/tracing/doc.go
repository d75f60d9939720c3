// Package tracing sends OpenTelemetry spans of what is slow and leaves the process:
// calls to the provider, to the store of locks and sequences, requests for those on
// the socket, and the lease server's HTTP requests. IDs are never traced.
//
// It is configured by the standard OTEL_* variables alone. Where these name no OTLP
// endpoint, Start returns nil; the methods of a nil *Tracing return what they were
// given, so that nothing runs and nothing is allocated.
//
// Nothing here can keep an ID, a lock or a value from being issued: a variable that
// makes no sense is a warning, a collector that cannot be reached a log line now and
// then, and spans that pile up meanwhile are dropped.
//
// Spans hold no secret, and no key of a lock or a sequence either: collectors are
// often another team's, and keys may be names of customers.
package tracing
