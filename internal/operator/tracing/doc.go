// Package tracing sends OpenTelemetry spans of slow calls that leave the process:
// calls to the provider and to the store of locks and sequences, requests for locks
// and sequences on the socket, and the lease server's HTTP requests. Requests for IDs
// are never traced.
//
// The standard OTEL_* variables configure it. If they name no OTLP endpoint, Start
// returns nil; the methods of a nil *Tracing return their argument, so that tracing
// costs nothing.
//
// Tracing never keeps an ID, a lock or a value from being issued: an invalid variable
// is ignored, an unreachable collector is a log line a minute, and spans that pile up
// meanwhile are dropped.
//
// Spans hold no secret, and no key of a lock or a sequence either: collectors are
// often another team's, and keys may be names of customers.
package tracing
