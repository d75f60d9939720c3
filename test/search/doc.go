// Package search runs the product's own cores through every order of events in small
// worlds, to a stated depth. Where test/proof draws long runs by chance, a search
// leaves nothing out: within its bounds there is no order of events that breaks the
// promise. There are worlds of leases, of locks, of sequences and of placement. Each rule is
// broken once, and the search finds the shortest way to two equal IDs, two holders of a lock,
// a value that comes twice, or two live activations. docs/model/README.md has the tables.
package search
