package lease

import (
	"errors"
	"math"
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
		// Seeds 000-2.2-1, 000-4.2-3, 000-4.2-4 and 000-13-1.
		"bitReserve is 0": func(l *Lease) { l.BitReserve = 0 },
		"bitReserve is 2": func(l *Lease) { l.BitReserve, l.BitSeq = 2, 7 },
		"must be 63":      func(l *Lease) { l.BitSeq = 9 },
		"at least 1":      func(l *Lease) { l.BitID, l.BitSeq = 0, 22 },
		// Seeds 000-2.2-3 and 000-6.3-1: the first bit is fallback's.
		"machine IDs 0 to 8191": func(l *Lease) { l.ID = 8192 },
		"a layout of 41/14/8":   func(l *Lease) { l.ID = -1 },
		"no secret":             func(l *Lease) { l.Secret = "" },
		"no interval":           func(l *Lease) { l.Expired = l.Created },
		"which is no interval":  func(l *Lease) { l.Created = -1 },
		"reserved until":        func(l *Lease) { l.ReservedUntil = l.Expired - 1 },
		"may have 1024":         func(l *Lease) { l.Secret = strings.Repeat("s", maxSecretBytes+1) },
		"created 92233":         func(l *Lease) { l.Created = math.MaxInt64 },
		"expired 92233":         func(l *Lease) { l.Expired = math.MaxInt64 },
		"expired 4611":          func(l *Lease) { l.Expired = maxMS + 1 },
		"reservedUntil 92233":   func(l *Lease) { l.ReservedUntil = math.MaxInt64 },
		"customEpoch 92233":     func(l *Lease) { l.EpochMS = math.MaxInt64 },
		"customEpoch -92233":    func(l *Lease) { l.EpochMS = math.MinInt64 },
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
		if l.Allows(ms) != want { // seed 003-4.3-4
			t.Errorf("Allows(created%+d) is %v", ms-l.Created, !want)
		}
	}
}

// TestSign holds the signatures to values computed elsewhere:
// printf 7:1800000000000 | openssl dgst -sha256 -hmac s3cret
func TestSign(t *testing.T) {
	const created, expired = 1_800_000_000_000, 1_800_000_600_000
	for text, test := range map[string]struct{ got, want string }{
		"7:1800000000000": {
			Sign("s3cret", 7, created), "20bce4fc0bb2140989ecce50793a963be83f2d976ad7fed6f86e15a6369f0227",
		},
		"verify:7:1800000000000":               {SignVerify("s3cret", 7, created), "e5118fea9bd366ee917507f2bc8f6d5a5a5f2232075f4601b65ab7bd0ff4c120"},
		"extend:7:1800000000000:1800000600000": {SignExtend("s3cret", 7, created, expired), "b322917c9e92346099bf5982fc6246ec9ad238c4ad66c05efaa5512cbf998d8d"},
	} {
		if !SameSignature(test.got, test.want) { // seeds 000-4.5-2 and 000-7.2-2
			t.Errorf("%s: signature %s, want %s", text, test.got, test.want)
		}
	}
	for _, wrong := range []string{
		Sign("other", 7, created), Sign("s3cret", 8, created), Sign("s3cret", 7, created+1),
		SignVerify("s3cret", 7, created), SignExtend("s3cret", 7, created, expired), "",
		strings.ToUpper(Sign("s3cret", 7, created)),
	} {
		if SameSignature(Sign("s3cret", 7, created), wrong) {
			t.Errorf("%q is taken for the signature", wrong)
		}
	}
}

func TestStringHidesTheSecret(t *testing.T) {
	if s := valid().String(); strings.Contains(s, "s3cret") || !strings.Contains(s, "machine ID 7") { // seed 000-4.5-4
		t.Errorf("String is %q", s)
	}
}
