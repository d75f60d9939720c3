// Package storage keeps the activation records of placement.
//
// A backend keeps cells: bytes under a name, of which it replaces one only if it
// is what the caller last saw. All that there is to decide about records is
// decided here, once (placement.Put, placement.Drop).
package storage
