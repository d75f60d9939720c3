//go:build !linux

package main

// dropBinaryPages does nothing here.
func dropBinaryPages() {}
