// Package mutation breaks the rules one at a time, in the program's text: each of the
// mutations in mutations.txt must be caught. A rule that can be broken unnoticed is not
// tested.
//
// `make mutants` compiles each mutant, and asks, in this order, the simulation, the
// simulation of placement, and, as the last resort, the tests of the rule's own package. For
// locks, sequences, their stores, placement and SQLite files the first is the whole simulation:
// worlds of hosts with all that ships. The rules of pools meet both. Tests that do not contain
// the mutated package are not asked. caught.txt says who caught each mutation; that judge is
// asked first, unless MUTANTS=-mutation.page has the table written anew. `make check` runs one
// in eight, and other ones with each commit, so that all come round.
package mutation
