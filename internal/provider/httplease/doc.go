// Package httplease is the provider on a lease server, reached over HTTP: see
// package httpconn for several servers, and for credentials.
//
// # What an error means
//
// The server's problems become the errors of package provider again, exactly
// (package leaseapi). One difference remains: when an earlier server may have
// granted and the next one refuses before it looked at the store (OVERLOADED,
// RATE_LIMITED), that is no settled answer, and the caller is told that the
// provider is unavailable, so that it asks again under the same request ID.
//
// An acquire carries a request ID and can be repeated as it was, and so can all
// calls but a release, which is sent once.
//
// # Servers that others wrote
//
// A server needs to know no more than seed 000, sections 4.2 and 7.1: see foreign.
package httplease
