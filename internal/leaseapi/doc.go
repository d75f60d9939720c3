// Package leaseapi is shared by the lease server and its clients: the JSON of the HTTP
// API, the codes of its errors, and their conversion to and from the requests and errors
// of package provider. It does no I/O.
//
// # Contract
//
//   - The names in the JSON of POST /lease and DELETE /lease/{id} are fixed; names are
//     only ever added.
//   - Both sides ignore unknown fields: a newer client must get leases from an older
//     server, and clients pass on options of their own. Known fields must have the
//     right type.
//   - An error is an RFC 9457 problem with a code that says what to do about it.
//     FromError and ToError are inverse to each other for every error that callers of a
//     provider distinguish; any other error is PROVIDER_UNAVAILABLE, and its detail stays
//     in the server's log.
//   - The secret of a lease travels once, in the answer to the acquire. It is never in
//     a URL, in an error or in a list.
package leaseapi
