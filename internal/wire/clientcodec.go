package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

func encodeRequest(id uint32, method string, params []any) ([]byte, error) {
	var out bytes.Buffer
	enc := newEncoder(&out)
	err := errors.Join(
		enc.EncodeArrayLen(4),
		enc.EncodeUint(uint64(TypeRequest)),
		enc.EncodeUint(uint64(id)),
		enc.EncodeString(method),
		enc.EncodeArrayLen(len(params)),
	)
	for i, p := range params {
		if err == nil {
			if err = enc.Encode(p); err != nil {
				err = fmt.Errorf("encode parameter %d: %w", i+1, err)
			}
		}
	}
	return whole(out.Bytes(), err)
}

// whole returns the encoded message, or an error if it cannot be sent.
func whole(message []byte, err error) ([]byte, error) {
	if size := len(message); err == nil && size > MaxMessage {
		err = fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, size, MaxMessage)
	}
	return message, err
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

// decodeResult stores a result, one whole value, in target.
func decodeResult(raw []byte, target any) (err error) {
	var v values
	v.reset(raw)
	switch t := target.(type) {
	case nil:
		return nil
	case *uint64:
		*t, err = v.uint64()
		return err
	case *int64:
		*t, err = v.int64()
		return err
	case *[]uint64:
		*t, err = v.uint64s()
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
