// Package kubernetes is a provider that keeps its grants in Lease objects
// (coordination.k8s.io/v1) of one namespace of a Kubernetes cluster. It needs nothing but
// the API server, and a Role for get, list, create and update.
//
// # Objects
//
// A machine ID has one object, kazahana-POOL-ID, which is made with its first grant and
// never deleted. Its annotation holds the slot: the latest grant, and a few before. The
// pool has a head, kazahana-POOL-pool: its timeline and layout, the key that secrets are
// made with, a bound on every end ever granted, and the end of a fence. No slot holds a
// secret. Spec and labels are for people and for selecting; nothing is decided by them.
//
// # One object at a time
//
// A grant, a release or an extension writes one object, by a create, or by an update with
// the uid and resourceVersion that were read. A uid keeps an update from making a deleted
// object anew. An update that changes nothing succeeds and proves nothing, so that every
// write has a nonce of its own; after a lost answer an object with our nonce is ours.
//
// # Two objects
//
// The API has no change of two objects, so slot and head are kept together by order:
//
//	holder:  write the slot            | then read the head
//	closer:  write the head (closed)   | then list the slots, then open the head
//
// A holder begins with a head that was open. Its write may come long after.
// Either the closer's list has the holder's slot, or the holder reads a head that was
// closed after it began: another generation, or another head. It then gives the grant back
// unused. So a fence and a change of the layout know every grant that is ever used. A
// process that finds the head closed, as its closer may have died, lists and opens it.
//
// No grant ends after the head's bound, which is raised first. The head names one slot as a
// witness: a process that finds it missing closes the pool, and if no slot is left, the
// bound says how long the pool must wait.
package kubernetes
