// Package model checks the specifications of docs/model with TLC, the model checker
// of TLA+: that the invariants hold in every state of some small worlds, and that
// each rule is needed there: without it TLC finds the shortest way to a broken
// promise.
package model
