package placement

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/keyname"
)

// Limits of names, in bytes of UTF-8.
const (
	MaxKind      = 64
	MaxIdentity  = 256
	MaxPID       = 256
	MaxAuthority = 255
	MaxSnapshot  = 64 << 10
)

// Key names an actor.
type Key struct{ Kind, Identity string }

// String is kind/identity. A kind has no slash, so that it can be read back.
func (k Key) String() string { return k.Kind + "/" + k.Identity }

// Compare orders keys as their Strings are ordered.
func (k Key) Compare(other Key) int {
	if k.Kind == other.Kind {
		return strings.Compare(k.Identity, other.Identity)
	}
	return strings.Compare(k.Kind+"/", other.Kind+"/")
}

// ParseKey reads what String wrote.
func ParseKey(s string) (Key, error) {
	kind, identity, ok := strings.Cut(s, "/")
	if !ok {
		return Key{}, fmt.Errorf("%w: %q is not KIND/IDENTITY", ErrInvalid, s)
	}
	k := Key{kind, identity}
	return k, k.Validate()
}

// Validate returns the fault of the key.
func (k Key) Validate() error {
	if err := CheckKind(k.Kind); err != nil {
		return err
	}
	return check("identity", k.Identity, MaxIdentity)
}

// CheckKind returns the fault of a kind's name.
func CheckKind(kind string) error {
	if strings.Contains(kind, "/") {
		return fmt.Errorf("%w: the kind %q has a slash", ErrInvalid, kind)
	}
	return check("kind", kind, MaxKind)
}

func check(what, name string, limit int) error {
	if err := keyname.Check(name, limit); err != nil {
		return fmt.Errorf("%w: the %s %w", ErrInvalid, what, err)
	}
	return nil
}

// Why a key cannot be resolved now.
var (
	ErrInvalid  = errors.New("invalid")
	ErrNotReady = errors.New("placement is not ready")                   // no member, no topology, or stopped
	ErrPending  = errors.New("the activation is under way")              // ask again
	ErrOwned    = errors.New("another member still owns the activation") // until it has passivated, or its membership ends
	ErrUnserved = errors.New("no process of any host has registered for this kind")
	ErrLost     = errors.New("this host is not the key's authority any more") // while the activation was under way
	ErrNoRoom   = errors.New("there is no room for the record")               // of a store
	ErrStale    = errors.New("the record is older than the stored one")       // of a store
)

// Member is one host of the topology. Token is the fencing token of its
// membership: a host that comes back under its name is another member.
type Member struct {
	Authority string
	Token     int64
}

// Record is the activation of a key, as it is stored: the only truth about it.
type Record struct {
	Owner    Member // Authority "": none, the activation has ended
	PID      string // "" while the process has not answered yet
	Version  int64  // of activations of the key, from 1 on
	Token    int64  // fencing token of the activation; grows with the version
	Snapshot []byte // left behind by the last passivation
	// ObservedMS is when its owner decided on it, by that host's wall clock, Unix ms. It is for
	// people: nothing is decided by it.
	ObservedMS int64
}

// Lease is the key's lock, held while an activation is under way.
type Lease struct {
	ID    string
	Token int64
}

// Moment is when the core is told something.
type Moment struct {
	Boot   time.Duration // on the host's clock that counts suspend
	UnixMS int64         // on the wall clock, for readers of events
}

// Validate returns the fault of a record that names an owner.
func (r Record) Validate() error {
	if err := check("owner", r.Owner.Authority, MaxAuthority); err != nil {
		return err
	}
	switch {
	case r.Version < 1 || r.Token < 1 || r.Owner.Token < 1:
		return fmt.Errorf("%w: version %d, token %d and membership %d must be 1 or more", ErrInvalid, r.Version, r.Token, r.Owner.Token)
	case len(r.PID) > MaxPID:
		return fmt.Errorf("%w: the pid has %d bytes, and at most %d are allowed", ErrInvalid, len(r.PID), MaxPID)
	case len(r.Snapshot) > MaxSnapshot:
		return fmt.Errorf("%w: the snapshot has %d bytes, and at most %d are allowed", ErrInvalid, len(r.Snapshot), MaxSnapshot)
	}
	return nil
}
