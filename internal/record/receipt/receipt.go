// Package receipt has what locks and sequences share about requests that come again: when a
// request was made, for how long its answer is kept, and where that is.
//
// The record of a key has the receipts of its latest requests. Older ones move to windows:
// records of their own, which the store deletes Keep later. The time in the request ID names
// the window, so a repetition finds it without a search. Windows are narrow for a busy key
// and wide for a quiet one, so that each has tens to some hundreds of receipts.
package receipt

import (
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

const (
	// Keep is how long the answer to a request is kept at least, from when it was carried
	// out, by the store's clock.
	Keep = 10 * time.Minute
	// MaxUntimed is how many requests whose IDs tell no time a key remembers. Further ones are
	// refused until the first are Keep old.
	MaxUntimed = 256
	// MaxAhead is how far the clock of an ID may be ahead of the store's; an ID from further
	// ahead tells no time. A clock that is set back has its requests refused for so long.
	MaxAhead = time.Minute
	// maxWindow is how many receipts a window has at most. Further ones are forgotten.
	maxWindow = 2048
	// maxMoved is how many windows a request writes at most.
	maxMoved = 6

	// firstMS is the start of 2020 in Unix ms: no clock of a host shows an earlier time.
	firstMS = 1_577_836_800_000
	// idDigits is how long a UUID is without its hyphens.
	idDigits = 32
	// The widths of windows are powers of two, in ms: 4, 32, 256, ... and about 17 minutes.
	narrowest, widest, widthStep = 2, 20, 3
)

// Stamp is a time that a request ID tells, in 4096ths of a Unix ms: the first 60 bits of a
// UUID of version 7, without the version. The last 12 may be random.
type Stamp int64

// PerMS is how many stamps a millisecond has.
const PerMS = 1 << 12

// MS is the time in Unix ms.
func (s Stamp) MS() int64 { return int64(s) / PerMS }

// MadeAt is the time that a request ID tells, if it is a UUID of version 7, with or without
// hyphens, behind what a lease server puts before it. A time after the latest is none, and so
// is one before firstMS: random digits look like UUIDs of version 7 too.
func MadeAt(id string, latestMS int64) (made Stamp, ok bool) {
	id = id[strings.LastIndexByte(id, '.')+1:]
	if IsUUID(id) {
		id = strings.ReplaceAll(id, "-", "")
	}
	var uuid [idDigits / 2]byte
	if len(id) != idDigits {
		return 0, false
	}
	if _, err := hex.Decode(uuid[:], []byte(id)); err != nil {
		return 0, false
	}
	return MadeAtUUID(string(uuid[:]), latestMS)
}

// MadeAtUUID is MadeAt for the 16 bytes of a UUID.
func MadeAtUUID(uuid string, latestMS int64) (made Stamp, ok bool) {
	const version, variant = 7, 2
	if uuid[6]>>4 != version || uuid[8]>>6 != variant {
		return 0, false
	}
	for _, b := range []byte(uuid[:6]) {
		made = made<<8 | Stamp(b)
	}
	made = made<<12 | Stamp(uuid[6]&0xf)<<8 | Stamp(uuid[7])
	return made, made.MS() >= firstMS && made.MS() <= latestMS
}

// IsUUID reports whether the ID has the length and the hyphens of a UUID.
func IsUUID(id string) bool {
	return len(id) == idDigits+4 && id[8] == '-' && id[13] == '-' && id[18] == '-' && id[23] == '-'
}

// widthOf is how wide the windows are for requests that were carried out within a span of so
// many ms.
func widthOf(spanMS int64) int {
	width := narrowest
	for width < widest && int64(1)<<width < 2*spanMS {
		width += widthStep
	}
	return width
}

// Windows names all windows in which the receipt of a request may be.
func Windows(made Stamp) []string {
	var all []string
	for width := narrowest; width <= widest; width += widthStep {
		all = append(all, window(made, width))
	}
	return all
}

func numberOf(made Stamp, width int) int64 { return made.MS() >> width }

// window names the window of so great a width.
func window(made Stamp, width int) string {
	return strconv.FormatInt(int64(width), 16) + "." + strconv.FormatInt(numberOf(made, width), 16)
}
