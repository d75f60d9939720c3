// Package storage keeps the activation records of placement, in a record store. What
// there is to decide about them is package placement's (Put, Drop).
package storage
