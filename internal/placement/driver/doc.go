// Package driver carries out what placement.Core asks for: it holds the host's
// membership, looks at the other members, takes locks, keeps records, and asks the
// processes of the host.
//
// Core decides: a step function over placement.Core, which a simulation runs from a
// seed. Driver is the shell: it uses the core under one mutex, under which no I/O is
// done. Commands run beside each other, those of one key one after the other.
package driver
