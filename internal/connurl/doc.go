// Package connurl is what the URLs that name a server have in common, whatever
// is kept there: the form of their parameters, and what those about TLS mean.
package connurl
