package lock

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/kazahana/kazahana/internal/keyname"
	"github.com/kazahana/kazahana/internal/record"
)

// valueFormat is the first byte of a value.
const valueFormat = 3

// Flags of a value, its second byte.
const (
	valueReleased = 1 << iota
	// valueFresh: the lease began a term before the record's end.
	valueFresh
	valueHasLife
	// valueTerm: the latest renewal had another term than the acquire.
	valueTerm
	valueIsLease // the request ID of the acquire is the lease ID
)

// Flags of a receipt, beside its Op.
const (
	receiptOwner = 1 << (iota + 4) // another owner than the latest lease's
	receiptLease                   // another lease
)

// usualReceipt is how long most receipts are at most, and leastReceipt how long all are at least.
const (
	usualReceipt = 56
	leastReceipt = 2
)

// leaseDigits is how long a lease ID is, written in hexadecimal.
const leaseDigits = 32

var errDamaged = errors.New("its record is damaged")

// value is the state as records keep it. The end of a lease is the record's own. fresh:
// the lease is granted by this write.
func (s State) value(fresh bool) []byte {
	b := make([]byte, 0, 128+(len(s.Answers)+len(s.Releases)+1)*usualReceipt)
	var flags byte
	if s.Status == Released {
		flags |= valueReleased
	}
	if fresh {
		flags |= valueFresh
	}
	if s.Life != 0 {
		flags |= valueHasLife
	}
	if s.TermMS != s.TTLMS {
		flags |= valueTerm
	}
	isLease := s.RequestID != "" && s.RequestID == keyname.KeptRequestID(s.LeaseID)
	if isLease {
		flags |= valueIsLease
	}
	b = append(b, valueFormat, flags)
	b = binary.AppendUvarint(b, uint64(s.Token))
	b = append(b, leaseBytes(s.LeaseID)...)
	b = appendText(b, s.Owner)
	b = binary.AppendUvarint(b, uint64(s.TTLMS))
	if !isLease {
		b = appendText(b, s.RequestID)
	}
	if s.Life != 0 {
		b = binary.BigEndian.AppendUint64(b, s.Life)
	}
	if flags&valueFresh == 0 {
		b = binary.AppendVarint(b, s.AcquiredMS)
	}
	if s.Status == Released {
		b = binary.AppendVarint(b, s.ExpiresMS-s.AcquiredMS)
	}
	if flags&valueTerm != 0 {
		b = binary.AppendUvarint(b, uint64(s.TermMS))
	}
	b = append(binary.AppendUvarint(b, uint64(len(s.Note))), s.Note...)
	same := s.latest()
	for _, all := range [][]Receipt{s.Answers, s.Releases} {
		for _, r := range all {
			b = appendReceipt(b, r, same)
		}
	}
	return b
}

// latest has what most receipts share with the latest lease.
func (s State) latest() Receipt {
	return Receipt{Owner: ownerDigest(s.Owner), Lease: leaseBytes(s.LeaseID), Token: s.Token}
}

// appendReceipt writes the part of a receipt that it does not share with the latest lease.
func appendReceipt(b []byte, r, same Receipt) []byte {
	flags := byte(r.Op)
	if r.Op == Acquire {
		return appendText(append(b, flags), r.RequestID)
	}
	if r.Owner != same.Owner {
		flags |= receiptOwner
	}
	if r.Lease != same.Lease {
		flags |= receiptLease
	}
	b = appendText(append(b, flags), r.RequestID)
	if flags&receiptOwner != 0 {
		b = binary.BigEndian.AppendUint64(b, r.Owner)
	}
	if flags&receiptLease != 0 {
		b = append(b, r.Lease...)
	}
	if r.Op == Renew {
		return binary.AppendUvarint(b, uint64(r.TTLMS))
	}
	b = binary.AppendVarint(b, same.Token-r.Token)
	b = binary.AppendVarint(b, r.AcquiredMS)
	return binary.AppendVarint(b, r.ExpiresMS-r.AcquiredMS)
}

func appendText(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

// leaseBytes is a lease ID without its form.
func leaseBytes(id string) string {
	b, err := hex.DecodeString(id)
	if err != nil {
		panic("lock: a lease ID was not validated: " + err.Error())
	}
	return string(b)
}

func leaseID(b string) string { return hex.EncodeToString([]byte(b)) }

// parseState reads what value wrote, with the record's term as it is now. The receipts of a
// head may be incomplete, and are left out.
func parseState(r record.Record, head bool) (State, error) {
	v := reader{record.NewReader(r.Value)}
	format, flags := v.Byte(), v.Byte()
	if format != valueFormat {
		return State{}, fmt.Errorf("%w: it has the format %d, and this kazahanad knows %d", errDamaged, format, valueFormat)
	}
	s := State{Token: v.Number(), LeaseID: leaseID(v.lease()), Owner: v.name(), TTLMS: v.Number(), Status: Active, ExpiresMS: r.EndMS}
	if flags&valueIsLease == 0 {
		s.RequestID = v.id()
	} else if !head {
		s.RequestID = keyname.KeptRequestID(s.LeaseID)
	}
	if flags&valueHasLife != 0 {
		s.Life = binary.BigEndian.Uint64(v.Bytes(8))
	}
	if s.AcquiredMS = s.ExpiresMS - s.TTLMS; flags&valueFresh == 0 {
		s.AcquiredMS = v.Signed()
	}
	switch {
	case flags&valueReleased != 0:
		s.Status, s.ExpiresMS = Released, s.AcquiredMS+v.Signed()
	case r.Over:
		s.Status = Expired
	}
	if s.TermMS = s.TTLMS; flags&valueTerm != 0 {
		s.TermMS = v.Number()
	}
	s.Note = v.Text(int(min(v.Number(), MaxNote+1)))
	if !head && len(v.Rest()) > 0 {
		v.receipts(&s)
	}
	if v.Failed() || s.Token < 1 || s.Token > MaxToken {
		return State{}, fmt.Errorf("%w: it is no lock: %.100x", errDamaged, r.Value)
	}
	return s, nil
}

// reader reads a value.
type reader struct{ record.Reader }

func (v *reader) name() string { return v.Text(int(v.Byte())) }

func (v *reader) lease() string { return v.Text(leaseDigits / 2) }

// id is a request ID as it is kept.
func (v *reader) id() string {
	id := v.name()
	if len(id) > keyname.MaxKept {
		v.Fail()
	}
	return id
}

// receipts reads the rest of the value.
func (v *reader) receipts(s *State) {
	same := s.latest()
	for !v.Failed() && len(v.Rest()) > 0 {
		r := v.receipt(same)
		all := &s.Answers
		if r.Op == Release {
			all = &s.Releases
		}
		if *all == nil {
			*all = make([]Receipt, 0, min(MaxReceipts, len(v.Rest())/leastReceipt+1))
		}
		if *all = append(*all, r); len(*all) > MaxReceipts {
			v.Fail()
		}
	}
}

func (v *reader) receipt(same Receipt) Receipt {
	flags := v.Byte()
	r := Receipt{Op: Op(flags &^ (receiptOwner | receiptLease)), RequestID: v.id()}
	if r.Op == Acquire && flags == byte(Acquire) {
		return r
	}
	if r.Owner = same.Owner; flags&receiptOwner != 0 {
		r.Owner = binary.BigEndian.Uint64(v.Bytes(8))
	}
	if r.Lease = same.Lease; flags&receiptLease != 0 {
		r.Lease = v.lease()
	}
	switch r.Op {
	case Renew:
		r.TTLMS = v.Number()
	case Release:
		r.Token = same.Token - v.Signed()
		r.AcquiredMS = v.Signed()
		r.ExpiresMS = r.AcquiredMS + v.Signed()
	default:
		v.Fail()
	}
	return r
}
