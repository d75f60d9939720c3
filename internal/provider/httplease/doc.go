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
// Every call can be repeated as it was: an acquire carries a request ID, a second
// release changes nothing, an extension only ever lengthens.
package httplease
