package snowflake

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"

	//lint:ignore SA1019 external IDs are 64 bits, and so must the block be; AES has 128
	"golang.org/x/crypto/xtea"
)

// ExternalLen is the length of every external ID, in characters.
const ExternalLen = 11

// externalKeyInfo binds the derived key to this use (RFC 5869, "info"). Services other
// than "default" append "/" and their name.
const externalKeyInfo = "kazahana external id v1"

// ErrInvalidExternal is wrapped by every error of Decode.
var ErrInvalidExternal = errors.New("not an external ID")

// encoding has one spelling for each value: strict refuses non-zero spare bits
// in the last character.
var encoding = base64.RawURLEncoding.Strict()

// Codec turns IDs into external IDs and back: 64 bits, permuted, as 11 characters of
// base64url.
//
// The zero Codec permutes without a secret (moremur). That hides the sequence
// from a casual look; it is not encryption, and anyone can undo it. A codec
// with a secret encrypts the 64-bit block with XTEA.
type Codec struct {
	block cipher.Block // nil: without a secret
}

// NewCodec returns a service's codec for the secret: a file's bytes without one trailing
// newline, or a string's UTF-8. The service is part of the key, so that the external IDs of
// two services that share a secret cannot be linked; "" means "default". Anyone who knows
// the secret can decode every external ID; with another secret or service, published
// external IDs cannot be decoded.
func NewCodec(secret []byte, service string) (Codec, error) {
	if len(secret) == 0 {
		return Codec{}, errors.New("the secret for external IDs is empty")
	}
	info := externalKeyInfo
	if service != "" && service != "default" {
		info += "/" + service
	}
	key, err := hkdf.Key(sha256.New, secret, nil, info, 16)
	if err != nil {
		return Codec{}, fmt.Errorf("derive the key for external IDs: %w", err)
	}
	block, err := xtea.NewCipher(key)
	if err != nil {
		return Codec{}, fmt.Errorf("derive the key for external IDs: %w", err)
	}
	return Codec{block: block}, nil
}

// Encode spells the ID.
func (c Codec) Encode(id ID) string {
	var b [8]byte
	if c.block == nil {
		binary.BigEndian.PutUint64(b[:], moremur(uint64(id)))
	} else {
		binary.BigEndian.PutUint64(b[:], uint64(id))
		c.block.Encrypt(b[:], b[:])
	}
	return encoding.EncodeToString(b[:])
}

// Decode undoes Encode. It fails, wrapping ErrInvalidExternal, for a string
// that Encode cannot have made: of another length, with characters outside
// base64url, spelled otherwise, or with the reserve bit set. About half of all
// forged strings pass; see DecodeBefore.
func (c Codec) Decode(s string) (ID, error) {
	if len(s) != ExternalLen {
		return 0, fmt.Errorf("%w: it has %d characters, and %d are right", ErrInvalidExternal, len(s), ExternalLen)
	}
	var b [8]byte
	// The decoder skips line breaks; the rest is then too short.
	if n, err := encoding.Decode(b[:], []byte(s)); err != nil || n != len(b) {
		return 0, fmt.Errorf("%w: it is not base64url without padding, in its one spelling", ErrInvalidExternal)
	}
	var id uint64
	if c.block == nil {
		id = unmoremur(binary.BigEndian.Uint64(b[:]))
	} else {
		c.block.Decrypt(b[:], b[:])
		id = binary.BigEndian.Uint64(b[:])
	}
	if id>>ValueBits != 0 {
		return 0, fmt.Errorf("%w: it does not decode to an ID", ErrInvalidExternal)
	}
	return ID(id), nil
}

// DecodeBefore is Decode for callers who know the latest time, in Unix ms,
// that an ID can plausibly embed: now, plus some tolerance. It refuses almost
// every forged string: with 41 bits of time, strings that decode into the years
// since the epoch are few.
func (c Codec) DecodeBefore(s string, tl Timeline, latestMS int64) (ID, error) {
	id, err := c.Decode(s)
	if err != nil {
		return 0, err
	}
	if tl.UnixMS(id) > latestMS {
		return 0, fmt.Errorf("%w: it would have been made at %s", ErrInvalidExternal, FormatMS(tl.UnixMS(id)))
	}
	return id, nil
}

// Multipliers of moremur (Pelle Evensen, 2019), a permutation of 64 bits, and
// their inverses modulo 2^64.
const (
	moremurA    = 0x3C79AC492BA7B653
	moremurB    = 0x1C69B3F74AC4AE35
	moremurAInv = 0xC09C5FE5BD6DFDDB
	moremurBInv = 0xC47C8F6B6BAFB41D
)

// The inverses are inverses, or this does not compile.
var _ = [1]struct{}{}[moremurA*moremurAInv%(1<<64)-1+moremurB*moremurBInv%(1<<64)-1]

func moremur(x uint64) uint64 {
	x ^= x >> 27
	x *= moremurA
	x ^= x >> 33
	x *= moremurB
	x ^= x >> 27
	return x
}

func unmoremur(x uint64) uint64 {
	x = unxorshift27(x)
	x *= moremurBInv
	x ^= x >> 33
	x *= moremurAInv
	return unxorshift27(x)
}

// unxorshift27 inverts x ^= x >> 27.
func unxorshift27(x uint64) uint64 { return x ^ x>>27 ^ x>>54 }
