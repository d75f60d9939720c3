package wire

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// outgoing is an encoded request or answer on its way to the stream.
type outgoing struct {
	out sink
	enc *msgpack.Encoder // writes to out
}

var outgoings = sync.Pool{New: func() any {
	o := new(outgoing)
	o.enc = newEncoder(&o.out)
	return o
}}

func (o *outgoing) recycle() {
	o.out.buf = o.out.buf[:0]
	o.out.shrink(0)
	outgoings.Put(o)
}

func encodeRequest(id uint32, method string, params []any) (*outgoing, error) {
	o := outgoings.Get().(*outgoing)
	err := errors.Join(
		o.enc.EncodeArrayLen(4),
		o.enc.EncodeUint(uint64(TypeRequest)),
		o.enc.EncodeUint(uint64(id)),
		o.enc.EncodeString(method),
		o.enc.EncodeArrayLen(len(params)),
	)
	for i, p := range params {
		if err == nil {
			if err = o.enc.Encode(p); err != nil {
				err = fmt.Errorf("encode parameter %d: %w", i+1, err)
			}
		}
	}
	return o.whole(err)
}

// maxRefusal limits the text of an error that is sent to the peer.
const maxRefusal = 1024

func encodeAnswer(id uint32, result any, refusal error) (*outgoing, error) {
	var shown any
	if refusal != nil {
		text := refusal.Error()
		text = strings.ToValidUTF8(text[:min(len(text), maxRefusal)], "\uFFFD")
		shown, result = []any{uint8(Failed), text}, nil
	}
	o := outgoings.Get().(*outgoing)
	return o.whole(errors.Join(
		o.enc.EncodeArrayLen(4),
		o.enc.EncodeUint(uint64(TypeResponse)),
		o.enc.EncodeUint(uint64(id)),
		o.enc.Encode(shown),
		o.enc.Encode(result),
	))
}

// whole returns the encoded message, or an error if it cannot be sent.
func (o *outgoing) whole(err error) (*outgoing, error) {
	if size := len(o.out.buf); err == nil && size > MaxMessage {
		err = fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, size, MaxMessage)
	}
	if err != nil {
		o.recycle()
		return nil, err
	}
	return o, nil
}

// answerError reads the error of a response, nil if there is none. Other forms of
// errors, of other servers, become the message.
func (v *values) answerError() (*Error, error) {
	switch kind := v.kind(); kind {
	case KindNil:
		_, err := v.bytesOfNext()
		return nil, err
	case KindString, KindBinary:
		text, err := v.bytes()
		return ParseErrorText(Failed, string(text)), err
	case KindArray:
		raw, err := v.bytesOfNext()
		if err != nil {
			return nil, err
		}
		if e := pairError(raw); e != nil {
			return e, nil
		}
		return &Error{Message: "the server answered with an array that is not a known form of error"}, nil
	default:
		_, err := v.bytesOfNext()
		return &Error{Message: fmt.Sprintf("the server answered with %v as the error", kind)}, err
	}
}

// pairError reads [kind, text], or returns nil if raw is something else.
func pairError(raw []byte) *Error {
	var v values
	v.reset(raw)
	if n, err := v.arrayLen(); err != nil || n != 2 {
		return nil
	}
	kind, err := v.uint64()
	if err != nil || kind > math.MaxUint8 {
		return nil
	}
	text, err := v.bytes()
	if err != nil {
		return nil
	}
	return ParseErrorText(ErrorKind(kind), string(text))
}

// Decode stores the next value in target, as Client.Call does with a result.
func (r *Request) Decode(target any) error {
	raw, err := r.Raw()
	if err != nil {
		return err
	}
	return decodeResult(raw, target)
}

// decodeResult stores a result, one whole value, in target.
func decodeResult(raw []byte, target any) (err error) {
	var v values
	v.reset(raw)
	if taken, err := v.integers(target); taken {
		return err
	}
	// If the library expects a map and finds an extension type, it skips the head, and
	// would then trust lengths that the Splitter has not checked.
	check := Splitter{limit: math.MaxInt32, anyValue: true}
	if _, err := check.Scan(raw); err != nil || check.ext {
		return errors.New("extension types are not supported")
	}
	v.dec.SetCustomStructTag(structTag)
	v.dec.UseLooseInterfaceDecoding(true)
	if t, ok := target.(*any); ok {
		*t, err = v.dec.DecodeInterfaceLoose()
		return err
	}
	return v.dec.Decode(target)
}

// integers stores the next value in target and returns true if target is for integers
// or nil.
func (v *values) integers(target any) (taken bool, err error) {
	switch t := target.(type) {
	case nil:
	case *uint64:
		*t, err = v.uint64()
	case *int64:
		*t, err = v.int64()
	case *[]uint64:
		*t, err = v.uint64s()
	default:
		return false, nil
	}
	return true, err
}

func (v *values) uint64s() ([]uint64, error) {
	n, err := v.arrayLen()
	if err != nil {
		return nil, err
	}
	all := make([]uint64, n)
	for i := range all {
		if all[i], err = v.uint64(); err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
	}
	return all, nil
}
