// Package http is locks over HTTP: the messages of the lease server's lock
// service, and the Store that asks such a server.
//
// # Tenants and owners
//
// The client's credential sets tenant and owner; the client need not know them. An owner
// that a Request names is sent as owner_suffix, which the server puts behind the
// credential's owner and a slash; answers show the owners of this credential without
// that, as the requests had them, and others in full. The tenant that a Request names is
// not sent: the credential's is always meant.
//
// # Several servers
//
// A request with a request ID may be sent again, to the next server too, and so may
// a renewal that names its lease. Anything else is sent once: see package httpconn.
package http
