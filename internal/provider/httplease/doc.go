// Package httplease is the provider on a lease server, reached over HTTP.
//
// # Several servers
//
// The URLs of one provider lead to servers in front of one store. A call goes to
// the server that answered last. When that server cannot be reached, does not
// answer in its share of the time, or says that it (not the store) is in trouble,
// the call goes to the next, once around. An answer about the store (no machine ID
// free, a fence, a conflict) is the answer, and no other server is asked.
//
// A call that failed may have been carried out all the same. It is repeated as it
// was, and every call can be: an acquire carries a request ID, a second release
// changes nothing, an extension only ever lengthens.
//
// # What an error means
//
// The server's problems become the errors of package provider again, exactly
// (package leaseapi). One difference remains: when an earlier server may have
// granted and the next one refuses before it looked at the store (OVERLOADED,
// RATE_LIMITED), that is no settled answer, and the caller is told that the
// provider is unavailable, so that it asks again under the same request ID.
//
// # Credentials
//
// The token, from token_file, is read for each call, so that it can be replaced
// under way; so is the client's certificate for each connection. Redirects are not
// followed: they would carry the token elsewhere. Proxies of the environment
// (HTTPS_PROXY) are not used.
package httplease
