package kazahana

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"
)

// externalLen is the length of every external ID, in characters.
const externalLen = 11

// externalKeyInfo binds the derived key to this use. Services other than "default" append
// "/" and their name.
const externalKeyInfo = "kazahana external id v1"

// externalEncoding has one spelling for each value: strict refuses non-zero spare bits in
// the last character.
var externalEncoding = base64.RawURLEncoding.Strict()

// An ExternalCodec turns IDs into external IDs of 11 characters and back, without a daemon.
// The zero value has no secret: it hides the sequence from a casual look, and anyone can
// decode its external IDs.
type ExternalCodec struct{ key *[4]uint32 }

// NewExternalCodec returns a service's codec for its secret: the content of the
// daemon's external_secret_file without one trailing newline. The service is part of the
// key; "" means "default".
func NewExternalCodec(secret, service string) (ExternalCodec, error) {
	if secret == "" {
		return ExternalCodec{}, invalid(ErrInvalidParams, "the secret for external IDs is empty")
	}
	info := externalKeyInfo
	if service != "" && service != "default" {
		info += "/" + service
	}
	sum := func(key []byte, text string) []byte {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	// HKDF (RFC 5869) of one block, without a salt.
	block := sum(sum(make([]byte, sha256.Size), secret), info+"\x01")
	var key [4]uint32
	for i := range key {
		key[i] = binary.BigEndian.Uint32(block[4*i:])
	}
	return ExternalCodec{&key}, nil
}

// Encode returns the external ID.
func (c ExternalCodec) Encode(id ID) string {
	return externalEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, c.encrypt(uint64(id))))
}

// Decode returns the ID of an external ID. About half of all forged strings pass; see
// DecodeBefore. The error is ErrInvalidExternalID.
func (c ExternalCodec) Decode(external string) (ID, error) {
	if len(external) != externalLen {
		return 0, invalid(ErrInvalidExternalID, "not an external ID: it has %d characters, and %d are right", len(external), externalLen)
	}
	b, err := externalEncoding.DecodeString(external)
	if err != nil || len(b) != 8 { // the decoder skips line breaks
		return 0, invalid(ErrInvalidExternalID, "not an external ID: it is not base64url without padding, in its one spelling")
	}
	x := c.decrypt(binary.BigEndian.Uint64(b))
	if x>>valueBits != 0 {
		return 0, invalid(ErrInvalidExternalID, "not an external ID: it does not decode to an ID")
	}
	return ID(x), nil
}

// DecodeBefore is Decode with the latest plausible time of an ID: now, plus some tolerance.
// It refuses almost every forged string.
func (c ExternalCodec) DecodeBefore(external string, layout Layout, latest time.Time) (ID, error) {
	id, err := c.Decode(external)
	if err == nil && layout.unixMS(id) > latest.UnixMilli() {
		return 0, invalid(ErrInvalidExternalID, "not an external ID: it would have been made at %s", formatTime(id.Time(layout)))
	}
	return id, err
}

// XTEA has blocks of 64 bits, as external IDs must.
const (
	xteaRounds = 32
	xteaDelta  = 0x9e3779b9
)

func (c ExternalCodec) encrypt(x uint64) uint64 {
	if c.key == nil {
		return moremur(x)
	}
	a, b, sum := uint32(x>>32), uint32(x), uint32(0)
	for range xteaRounds {
		a += (b<<4 ^ b>>5) + b ^ (sum + c.key[sum&3])
		sum += xteaDelta
		b += (a<<4 ^ a>>5) + a ^ (sum + c.key[sum>>11&3])
	}
	return uint64(a)<<32 | uint64(b)
}

func (c ExternalCodec) decrypt(x uint64) uint64 {
	if c.key == nil {
		return unmoremur(x)
	}
	a, b, sum := uint32(x>>32), uint32(x), uint32(xteaDelta*xteaRounds&(1<<32-1))
	for range xteaRounds {
		b -= (a<<4 ^ a>>5) + a ^ (sum + c.key[sum>>11&3])
		sum -= xteaDelta
		a -= (b<<4 ^ b>>5) + b ^ (sum + c.key[sum&3])
	}
	return uint64(a)<<32 | uint64(b)
}

// Multipliers of moremur (Pelle Evensen, 2019), a permutation of 64 bits, and their
// inverses modulo 2^64.
const (
	moremurA    = 0x3C79AC492BA7B653
	moremurB    = 0x1C69B3F74AC4AE35
	moremurAInv = 0xC09C5FE5BD6DFDDB
	moremurBInv = 0xC47C8F6B6BAFB41D
)

func moremur(x uint64) uint64 {
	x = (x ^ x>>27) * moremurA
	x = (x ^ x>>33) * moremurB
	return x ^ x>>27
}

func unmoremur(x uint64) uint64 {
	x = (x ^ x>>27 ^ x>>54) * moremurBInv
	x = (x ^ x>>33) * moremurAInv
	return x ^ x>>27 ^ x>>54
}
