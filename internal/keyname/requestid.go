package keyname

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
)

const (
	// MaxRequestID is how many characters a request ID may have.
	MaxRequestID = 128
	// MaxKept is how many bytes a kept request ID has at most.
	MaxKept = 16
)

// NewRequestID returns 128 random bits in hexadecimal.
func NewRequestID() string {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// KeptRequestID is a request ID as records keep it: itself, or the first MaxKept bytes of its
// SHA-256 if it is longer. No client can make a request ID that is kept as a given other one is.
func KeptRequestID(id string) string {
	if len(id) <= MaxKept {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return string(sum[:MaxKept])
}

// MarkedRequestID is the request ID that a lease server gives to its stores. The mark stands
// for a credential, so that no client hits the requests of another's.
func MarkedRequestID(mark, id string) string {
	sum := sha256.Sum256([]byte(mark + "." + id))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
