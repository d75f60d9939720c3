// Package lease holds the grant of one slot for an interval, and what can be
// said of it without asking anyone: whether it is well formed, which
// timestamps it allows, how a release is signed. It reads no clock.
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

// Lease is the right to make regular IDs from one slot, with embedded
// timestamps in [Created, Expired). The JSON names are those of seed 000,
// section 4.2, and of the HTTP lease server.
//
// Secret signs the release and must not reach a log; String leaves it out.
type Lease struct {
	ID            int64  `json:"id"`            // machine ID; its slot is Layout().Slot(ID)
	Created       int64  `json:"created"`       // Unix ms, by the provider's clock
	Expired       int64  `json:"expired"`       // Unix ms; the first one not allowed
	ReservedUntil int64  `json:"reservedUntil"` // Unix ms; before it nobody else is granted an overlapping slot
	Secret        string `json:"secret"`
	EpochMS       int64  `json:"customEpoch"`
	BitReserve    int    `json:"bitReserve"`
	BitTS         int    `json:"bitTs"`
	BitID         int    `json:"bitId"`
	BitSeq        int    `json:"bitSeq"`
}

// ErrMalformed is wrapped by every error of Validate.
var ErrMalformed = errors.New("malformed lease")

// Validate reports what makes the lease unusable whatever the clock says.
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

// Timeline is what the lease must share with every other one in its pool.
func (l Lease) Timeline() snowflake.Timeline {
	return snowflake.Timeline{EpochMS: l.EpochMS, BitTS: l.BitTS}
}

// Slot is the range of low bits that the lease covers.
func (l Lease) Slot() snowflake.Slot { return l.Layout().Slot(l.ID) }

// Throughput is how many IDs the lease gives per millisecond.
func (l Lease) Throughput() int64 { return l.Layout().Throughput() }

// Term is how long the lease is valid, in milliseconds.
func (l Lease) Term() int64 { return l.Expired - l.Created }

// Allows is the emit rule: it reports whether a regular ID made under this
// lease may embed the Unix millisecond.
func (l Lease) Allows(unixMS int64) bool { return l.Created <= unixMS && unixMS < l.Expired }

// Key identifies one grant among all that a host may hold: the same slot is
// granted again and again, each time with another secret.
type Key struct {
	Start  int64
	BitSeq int
	Secret string
}

// Key returns what tells this grant from every other.
func (l Lease) Key() Key { return Key{Start: l.Slot().Start, BitSeq: l.BitSeq, Secret: l.Secret} }

// String describes the lease for logs, without its secret.
func (l Lease) String() string {
	return fmt.Sprintf("machine ID %d (%v) from %s to %s", l.ID, l.Layout(),
		snowflake.FormatMS(l.Created), snowflake.FormatMS(l.Expired))
}

// Sign is the signature of a release: HMAC-SHA256 over "id:timestamp", keyed
// by the secret's text, in lower-case hex (seed 000, section 4.5).
func Sign(secret string, machineID, timestampMS int64) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(strconv.FormatInt(machineID, 10) + ":" + strconv.FormatInt(timestampMS, 10)))
	return hex.EncodeToString(mac.Sum(nil))
}

// Verify reports, in constant time, whether signature is what Sign gives.
func Verify(secret string, machineID, timestampMS int64, signature string) bool {
	return hmac.Equal([]byte(Sign(secret, machineID, timestampMS)), []byte(signature))
}
