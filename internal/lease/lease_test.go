package lease

import (
	"errors"
	"strings"
	"testing"
)

func valid() Lease {
	return Lease{
		ID: 7, Created: 1_800_000_000_000, Expired: 1_800_000_600_000, ReservedUntil: 1_800_001_200_000, Secret: "s3cret",
		EpochMS: 1_767_225_600_000, BitReserve: 1, BitTS: 41, BitID: 14, BitSeq: 8,
	}
}

func TestValidate(t *testing.T) {
	if err := valid().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Lease){
		"bitReserve":            func(l *Lease) { l.BitReserve = 0 },
		"must be 63":            func(l *Lease) { l.BitSeq = 9 },
		"at least 1":            func(l *Lease) { l.BitID, l.BitSeq = 0, 22 },
		"machine IDs 0 to 8191": func(l *Lease) { l.ID = 8192 },
		"a layout of 41/14/8":   func(l *Lease) { l.ID = -1 },
		"no secret":             func(l *Lease) { l.Secret = "" },
		"no interval":           func(l *Lease) { l.Expired = l.Created },
		"which is no interval":  func(l *Lease) { l.Created = -1 },
		"reserved until":        func(l *Lease) { l.ReservedUntil = l.Expired - 1 },
	} {
		l := valid()
		spoil(&l)
		if err := l.Validate(); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), name) {
			t.Errorf("want an error with %q, got %v", name, err)
		}
	}
}

// TestAllows is the emit rule: the beginning is part of the interval, the end
// is not.
func TestAllows(t *testing.T) {
	l := valid()
	for ms, want := range map[int64]bool{
		l.Created - 1: false, l.Created: true, l.Expired - 1: true, l.Expired: false, l.ReservedUntil: false,
	} {
		if l.Allows(ms) != want {
			t.Errorf("Allows(created%+d) is %v", ms-l.Created, !want)
		}
	}
}

// TestSign holds the signature to a value computed elsewhere:
// printf 7:1800000000000 | openssl dgst -sha256 -hmac s3cret
func TestSign(t *testing.T) {
	const want = "20bce4fc0bb2140989ecce50793a963be83f2d976ad7fed6f86e15a6369f0227"
	if got := Sign("s3cret", 7, 1_800_000_000_000); got != want {
		t.Errorf("signature %s, want %s", got, want)
	}
	if !Verify("s3cret", 7, 1_800_000_000_000, want) {
		t.Error("a right signature does not verify")
	}
	for _, wrong := range []bool{
		Verify("other", 7, 1_800_000_000_000, want), Verify("s3cret", 8, 1_800_000_000_000, want),
		Verify("s3cret", 7, 1_800_000_000_001, want), Verify("s3cret", 7, 1_800_000_000_000, ""),
		Verify("s3cret", 7, 1_800_000_000_000, strings.ToUpper(want)),
	} {
		if wrong {
			t.Error("a wrong signature verifies")
		}
	}
}

func TestStringHidesTheSecret(t *testing.T) {
	if s := valid().String(); strings.Contains(s, "s3cret") || !strings.Contains(s, "machine ID 7") {
		t.Errorf("String is %q", s)
	}
}

func TestKeyTellsGrantsApart(t *testing.T) {
	a, b := valid(), valid()
	if a.Key() != b.Key() {
		t.Error("one grant has two keys")
	}
	b.Secret = "another grant of the slot"
	if a.Key() == b.Key() {
		t.Error("two grants have one key")
	}
}
