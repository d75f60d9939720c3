// Package issuer assembles what makes IDs in one process: the local state, the
// believed clock, the provider, a store of sequences and locks, and for each service a
// generator and a keeper. The daemon answers requests with it, and package embed puts
// it into a program.
//
// # Guarantees
//
//   - The lock of the state directory comes first: a second process must not read the
//     leases.
//   - A provider or a store that cannot be reached delays nothing: the keepers try
//     again.
//   - Closing reverses the flow: the generators stop, then the leases go back, then
//     provider and state are closed.
package issuer
