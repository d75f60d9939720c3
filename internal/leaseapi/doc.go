// Package leaseapi is what the lease server and its clients have in common: the
// JSON of the HTTP API, the codes of its errors, and how both stand for the
// requests and errors of package provider. It does no I/O.
//
// # Contract
//
//   - The JSON of POST /lease and DELETE /lease/{id} is that of seed 000, sections
//     4.1, 4.2 and 7.1; names are only ever added.
//   - Fields that the reader does not know are ignored, on both sides: a newer
//     client must get leases from an older server, and clients pass on options of
//     their own. What a reader knows has to have the right type.
//   - An error is an RFC 9457 problem whose code says what to do about it. FromError
//     and ToError are inverse to each other for every error by which callers of a
//     provider decide; anything else is PROVIDER_UNAVAILABLE, whose detail stays in
//     the server's log.
//   - A secret is in the answer to an acquire, and in the body of POST requests to
//     extend and to verify, where the provider behind the server compares it. It is
//     never in a URL, in an error or in a list.
package leaseapi
