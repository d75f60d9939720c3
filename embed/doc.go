// Package embed makes 64-bit, time-sortable, unique IDs inside a Go program, without a
// daemon. The program leases a machine ID of its own from a provider, renews it in the
// background, and makes IDs from memory.
//
//	g, err := embed.Open(ctx, embed.Config{StateDir: "/var/lib/shop/ids"})
//	if err != nil {
//		return err
//	}
//	defer g.Close()
//	id, err := g.NextID(ctx)
//
// It is what kazahanad serve does, with the same keeper, the same local state, the same
// fallback and the same promise: two regular IDs are never equal, under any clock and
// whichever process crashes, as far as the provider's scope reaches. The IDs of one state
// directory strictly increase, also across restarts and kill -9. docs/uniqueness.md has
// the proof, docs/embed.md says when to use this package and when a daemon.
//
// # What a process needs
//
// A state directory of its own. A second process, or a second Generator, on the same
// directory is refused with a *StateInUseError. Each process holds a machine ID: the default
// layout has 8,192 of them for all processes of a pool. Where many short-lived processes make
// IDs, a daemon is the better choice.
//
// # Forks
//
// A child process must not use the Generator of its parent. Programs started with os/exec
// inherit nothing of it: all files are closed at the exec.
//
// # Signals
//
// The package handles none. A program that ends without Close loses neither order nor
// uniqueness: its next start goes on with its lease. Close hands the lease back.
package embed
