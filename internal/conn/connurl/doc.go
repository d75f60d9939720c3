// Package connurl is shared by all connections to servers: the form of URL parameters, the
// parameters for TLS, and the error that says that a request was not sent.
package connurl
