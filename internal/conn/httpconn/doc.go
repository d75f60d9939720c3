// Package httpconn is the connection to lease servers over HTTP, for all their APIs.
//
// # Several servers
//
// The URLs of one connection lead to servers in front of one store. A call goes to
// the server that answered last. When that server cannot be reached, does not
// answer in its share of the time, or says that it (not the store) is in trouble,
// the call goes to the next, once around. An answer about the store is the answer,
// and no other server is asked.
//
// A call that failed may have been carried out. It is repeated unchanged, so it must be
// idempotent, for example by a request ID, or be marked with Call.Once.
//
// If an earlier server may have carried a call out, and the next one refuses it without
// asking the store (OVERLOADED, RATE_LIMITED), the outcome is not settled: see Settled.
//
// # Credentials
//
// The token, from token_file, is read for each call, so that it can be replaced
// under way; so is the client's certificate for each connection. Redirects are not
// followed: they would carry the token elsewhere. Proxies of the environment
// (HTTPS_PROXY) are not used.
package httpconn
