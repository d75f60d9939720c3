// Package connurl is what the connections to servers have in common, whatever is
// kept there: the form of a URL's parameters, what those about TLS mean, and the
// error that says that a request was not sent.
package connurl
