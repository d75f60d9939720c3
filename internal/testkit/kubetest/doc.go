// Package kubetest is API servers of Kubernetes for tests: a small one of our own, and the
// real one.
//
// The small one keeps Lease objects of one namespace in memory. It has the API's rules on
// versions, conflicts, updates that change nothing, pages, the cache, rights and reviews, as
// the tests of this package see them at the real one.
package kubetest
