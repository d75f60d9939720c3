package placement

import "time"

// RequestID pairs a command with its result. IDs of one core are never used twice.
type RequestID uint64

// Op is the operation of a command.
type Op string

// The commands.
const (
	// TryAcquire takes the key's lock. Result: Lease, or *lock.HeldError and the like.
	TryAcquire Op = "try_acquire"
	// Load reads the key's record. Result: Record and Found.
	Load Op = "load"
	// CheckOwner asks the store of memberships whether Record.Owner's has ended. It reads the
	// present state, and nothing that was kept. Result: Ended.
	CheckOwner Op = "check_owner"
	// Store writes Record. Result: ErrStale where the stored one is newer.
	Store Op = "store"
	// Ensure has the process activate the key under Record.Version and Token. It is
	// not begun at Until or later, by the host's own clock. Result: PID, or an
	// error; with Unknown where the process may have done it all the same.
	Ensure Op = "ensure"
	// Passivate has the process end the activation of Record.Token. Result: Snapshot, nil
	// for the stored one; or an error: the process does not answer, or is gone.
	Passivate Op = "passivate"
	// Remove takes the owner out of the record, unless the stored one is newer than Record,
	// and keeps version, token and snapshot: Record's, or with Keep the stored one.
	// That also stops a Store of it that is still under way. Result: no error also
	// where the stored one is newer.
	Remove Op = "remove"
	// Release gives the key's lock back. A failure matters little: it expires.
	Release Op = "release"
)

// Command is I/O that the driver is asked for.
type Command struct {
	ID     RequestID
	Op     Op
	Key    Key
	Record Record
	Lease  Lease         // Release
	Keep   bool          // Remove
	Until  time.Duration // Ensure, on the clock of Moment.Boot
}

// Result is what became of a command.
type Result struct {
	ID       RequestID
	Err      error
	Unknown  bool // with Err: it may have been carried out
	Lease    Lease
	Record   Record
	Found    bool
	Ended    bool
	Denied   bool // TryAcquire, with Err: another host holds the lock
	PID      string
	Snapshot []byte
}

// EventKind tells events apart.
type EventKind string

// The events.
const (
	Resolved         EventKind = "resolved"
	LockDenied       EventKind = "lock_denied"
	Activated        EventKind = "activated"
	ActivationFailed EventKind = "activation_failed"
	Passivated       EventKind = "passivated"
	Unserved         EventKind = "unserved" // a caller has waited in vain for a process of the kind
	PIDCached        EventKind = "pid_cached"
	PIDDropped       EventKind = "pid_dropped"
)

// Event is something that happened to a key. Those of one core are told in their
// order.
type Event struct {
	Kind       EventKind
	Key        Key
	Authority  string
	PID        string
	Version    int64
	Token      int64
	Reason     string
	ObservedMS int64         // Unix ms
	Err        error         // LockDenied, ActivationFailed, Unserved; Passivated where the process was asked in vain
	Took       time.Duration // Activated: since it was first asked for
}

// Why an actor was passivated, as the Reason of Passivated tells it. There are others, where
// something has failed.
const (
	HostStops       = "this host stops"
	MembershipEnded = "this host's membership has ended"
	OtherAuthority  = "another host is its authority now"
	NoAuthority     = "no host serves its kind any more"
	NotAskedFor     = "nobody has asked for it lately"
	LetGo           = "its process lets it go"
	ProcessGone     = "the process is gone"
)
