// Package lease is about the grant of one slot for an interval: whether it is well
// formed, which timestamps it allows, how a release is signed. It reads no clock.
package lease

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// Lease is the right to make regular IDs from one slot, with embedded timestamps in
// [Created, Expired). The JSON names are those of the HTTP lease server.
//
// Secret signs the holder's requests. It is not sent again and must not reach a log;
// String leaves it out.
type Lease struct {
	ID            int64  `json:"id"`            // machine ID; its slot is Layout().Slot(ID)
	Created       int64  `json:"created"`       // Unix ms, by the provider's clock
	Expired       int64  `json:"expired"`       // Unix ms; the first one not allowed
	ReservedUntil int64  `json:"reservedUntil"` // Unix ms; before it no overlapping slot is granted to others
	Secret        string `json:"secret,omitempty"`
	EpochMS       int64  `json:"customEpoch"`
	BitReserve    int    `json:"bitReserve"`
	BitTS         int    `json:"bitTs"`
	BitID         int    `json:"bitId"`
	BitSeq        int    `json:"bitSeq"`
}

// Limits of what a lease may hold.
const (
	// maxMS is the last Unix ms, and the largest epoch: sums of two do not overflow.
	maxMS = 1<<62 - 1
	// maxSecretBytes is generous: 128 random bits in hex are 32.
	maxSecretBytes = 1024
)

// ErrMalformed is wrapped by every error of Validate.
var ErrMalformed = errors.New("malformed lease")

// Validate returns an error if the lease is unusable at any time.
func (l Lease) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: machine ID %d: %s", ErrMalformed, l.ID, fmt.Sprintf(format, args...))
	}
	if l.BitReserve != snowflake.BitReserve {
		return bad("bitReserve is %d, and must be %d", l.BitReserve, snowflake.BitReserve)
	}
	layout := l.Layout()
	if err := layout.Validate(); err != nil {
		return bad("%v", err)
	}
	switch {
	case l.ID < 0 || l.ID >= layout.MachineIDs():
		return bad("a layout of %v has machine IDs 0 to %d", layout, layout.MachineIDs()-1)
	case l.Secret == "":
		return bad("it has no secret")
	case len(l.Secret) > maxSecretBytes:
		return bad("its secret has %d bytes, and may have %d", len(l.Secret), maxSecretBytes)
	case max(l.Created, l.Expired, l.ReservedUntil, l.EpochMS) > maxMS || l.EpochMS < -maxMS:
		return bad("created %d, expired %d, reservedUntil %d and customEpoch %d are Unix milliseconds, and none may be beyond %d",
			l.Created, l.Expired, l.ReservedUntil, l.EpochMS, int64(maxMS))
	case l.Created < 0 || l.Expired <= l.Created:
		return bad("it is valid from %d to %d, which is no interval", l.Created, l.Expired)
	case l.ReservedUntil < l.Expired:
		return bad("it is reserved until %d, before it expires at %d", l.ReservedUntil, l.Expired)
	}
	return nil
}

// Layout is how the lease splits an ID.
func (l Lease) Layout() snowflake.Layout {
	return snowflake.Layout{BitTS: l.BitTS, BitID: l.BitID, BitSeq: l.BitSeq}
}

// Timeline is the epoch and the timestamp bits, which all leases of a pool share.
func (l Lease) Timeline() snowflake.Timeline {
	return snowflake.Timeline{EpochMS: l.EpochMS, BitTS: l.BitTS}
}

// Slot is the range of low bits that the lease covers.
func (l Lease) Slot() snowflake.Slot { return l.Layout().Slot(l.ID) }

// Throughput is the number of IDs per millisecond that the lease allows.
func (l Lease) Throughput() int64 { return l.Layout().Throughput() }

// Term is how long the lease is valid, in milliseconds.
func (l Lease) Term() int64 { return l.Expired - l.Created }

// Allows is the emit rule: it reports whether a regular ID made under this
// lease may embed the Unix millisecond.
func (l Lease) Allows(unixMS int64) bool { return l.Created <= unixMS && unixMS < l.Expired }

// Key identifies one grant. The same slot is granted repeatedly, each time with another
// secret.
type Key struct {
	Start  int64
	BitSeq int
	Secret string
}

// Key returns the key of this grant.
func (l Lease) Key() Key { return Key{Start: l.Slot().Start, BitSeq: l.BitSeq, Secret: l.Secret} }

// String describes the lease for logs, without its secret.
func (l Lease) String() string {
	return fmt.Sprintf("machine ID %d (%v) from %s to %s", l.ID, l.Layout(),
		snowflake.FormatMS(l.Created), snowflake.FormatMS(l.Expired))
}

// Sign is the signature of a release: HMAC-SHA256 over "id:timestamp", keyed
// by the secret's text, in lower-case hex (seed 000, section 4.5).
func Sign(secret string, machineID, timestampMS int64) string {
	return sign(secret, "", machineID, timestampMS)
}

// SignVerify is the signature of a verification: over "verify:id:created", in the same
// way.
func SignVerify(secret string, machineID, createdMS int64) string {
	return sign(secret, "verify:", machineID, createdMS)
}

// SignExtend is the signature of an extension: over "extend:id:created:expired",
// in the same way, with the end that the caller knows.
func SignExtend(secret string, machineID, createdMS, expiredMS int64) string {
	return sign(secret, "extend:", machineID, createdMS, expiredMS)
}

// sign gives each kind of request a prefix of its own: an overheard signature of one
// kind is not valid for another.
func sign(secret, prefix string, numbers ...int64) string {
	text := []byte(prefix)
	for i, n := range numbers {
		if i > 0 {
			text = append(text, ':')
		}
		text = strconv.AppendInt(text, n, 10)
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(text)
	return hex.EncodeToString(mac.Sum(nil))
}

// SameSignature compares signatures in constant time.
func SameSignature(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }
