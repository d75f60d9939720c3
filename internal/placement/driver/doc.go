// Package driver carries out what placement.Core asks for: it holds the host's
// membership, looks at the other members, takes locks, keeps records, and asks the
// processes of the host.
//
// The core is used under one mutex, and no I/O is done under it. Commands run
// beside each other, those of one key one after the other.
package driver
