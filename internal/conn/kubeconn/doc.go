// Package kubeconn talks to the API server of a Kubernetes cluster: it finds the server and
// the credentials as kubectl does, and reads and writes Lease objects of one namespace.
//
// The configuration, the credentials and TLS are client-go's: it reads tokens and
// certificates again when they rotate, and runs the credential plugins of a kubeconfig. The
// requests are made here, since a grant needs details that client-go hides: whether a byte
// of a request was sent, what the server's clock said, and how long it asks to wait.
// No request is repeated but after a refusal with 401, with a new token.
package kubeconn
