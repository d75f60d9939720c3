// Package mutation breaks the rules one at a time, in the program's text: each of the
// mutations in mutations.txt must be caught by a simulation or, as the last resort, by the
// tests of the rule's own room. A rule that can be broken unnoticed
// is not tested.
package mutation
