//go:build !linux

package main

// dropBinaryPages does nothing: what the start touched may stay.
func dropBinaryPages() {}
