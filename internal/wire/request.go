package wire

import (
	"math"
)

// MessageType is the first element of a message.
type MessageType uint8

// The message types of MessagePack-RPC.
const (
	TypeRequest      MessageType = 0
	TypeResponse     MessageType = 1
	TypeNotification MessageType = 2
)

// A Request is one message from a peer: a header, and a cursor over the params of a
// request or a notification. It can be reused: the zero value is ready, and reading
// into it again allocates nothing.
//
// The cursor goes forward only. Positional params are read with the typed
// methods in their order; Options then opens the map of options after them. A
// typed method that fails returns an *Error with INVALID_PARAMS that names the
// parameter or the option, and leaves the value to be read in another way.
//
// Slices that it hands out, Method included, are part of the connection's
// buffer and live until the next Read. A Request must not be copied.
type Request struct {
	_ noCopy

	Type   MessageType
	ID     uint32 // the msgid; 0 is valid; not set in a notification
	Method []byte // not set in a response

	values values
	shape  Kind // of the params; only KindArray can be read
	count  int  // positional params, the map of options included
	begun  int  // positional params read
	nested int  // values still to read inside the array or map that was opened
	mark   int  // where the value begins that is being read

	inOptions  bool
	options    int    // not yet begun
	option     []byte // the name of the option begun last
	optionOpen bool   // its value has not been read
}

// noCopy makes vet's copylocks check apply to a type.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Parse makes r the given message, which must be exactly one array that a
// Splitter has delimited, and keeps a reference to it. An error is a *ParseError.
func (r *Request) Parse(msg []byte) error {
	r.values.reset(msg)
	r.Type, r.ID, r.Method = 0, 0, nil
	r.shape, r.count, r.begun, r.nested = KindArray, 0, 0, 0
	r.inOptions, r.options, r.option, r.optionOpen = false, 0, nil, false

	length, err := r.values.arrayLen()
	if err != nil {
		return parseErrorf("not a message: %v", err)
	}
	if err := r.parseType(length); err != nil {
		return err
	}
	if r.Type != TypeNotification {
		id, err := r.values.uint64()
		if err == nil && id > math.MaxUint32 {
			return parseErrorf("bad msgid: %d does not fit 32 bits", id)
		}
		if err != nil {
			return parseErrorf("bad msgid: %v", err)
		}
		r.ID = uint32(id)
	}
	if r.Type == TypeResponse {
		return nil // the cursor stands before error and result
	}
	if r.Method, err = r.values.bytes(); err != nil {
		return parseErrorf("bad method: %v", err)
	}
	if r.shape = r.values.kind(); r.shape == KindArray {
		if r.count, err = r.values.arrayLen(); err != nil {
			return parseErrorf("bad params: %v", err)
		}
	}
	return nil
}

// parseType reads the message type and checks the array's length against it.
func (r *Request) parseType(length int) error {
	if length < 3 || length > 4 {
		return parseErrorf("not a message: an array of %d elements", length)
	}
	number, err := r.values.uint64()
	if err != nil {
		return parseErrorf("bad message type: %v", err)
	}
	want := 4
	switch {
	case number > uint64(TypeNotification):
		return parseErrorf("unknown message type %d", number)
	case MessageType(number) == TypeNotification:
		want = 3
	}
	if length != want {
		return parseErrorf("a message of type %d has %d elements, not %d", number, want, length)
	}
	r.Type = MessageType(number)
	return nil
}

// Answer reads a response: its result into target, as Client.Call does, or its
// error, which is an *Error. It may be called once.
func (r *Request) Answer(target any) error {
	failure, err := r.values.answerError()
	if err != nil {
		return err
	}
	if failure != nil {
		return failure
	}
	raw, err := r.values.bytesOfNext()
	if err != nil {
		return err
	}
	return decodeResult(raw, target)
}

// NumParams returns the number of positional params, a map of options included.
func (r *Request) NumParams() int { return r.count }

// Next returns the kind of the next value, KindNone if there is none.
func (r *Request) Next() Kind {
	if r.ready() != nil {
		return KindNone
	}
	return r.values.kind()
}

// Int64 reads an integer, or a float that is a whole number.
func (r *Request) Int64() (int64, error) {
	if err := r.ready(); err != nil {
		return 0, err
	}
	n, err := r.values.int64()
	return n, r.took(err)
}

// Uint64 reads an integer that is not negative, or a float that is such a number.
func (r *Request) Uint64() (uint64, error) {
	if err := r.ready(); err != nil {
		return 0, err
	}
	n, err := r.values.uint64()
	return n, r.took(err)
}

// Bool reads a boolean.
func (r *Request) Bool() (bool, error) {
	if err := r.ready(); err != nil {
		return false, err
	}
	b, err := r.values.bool()
	return b, r.took(err)
}

// Bytes reads a string or binary data.
func (r *Request) Bytes() ([]byte, error) {
	if err := r.ready(); err != nil {
		return nil, err
	}
	b, err := r.values.bytes()
	return b, r.took(err)
}

// Nil takes the next value if it is nil and reports whether it was.
func (r *Request) Nil() bool {
	if r.Next() != KindNil {
		return false
	}
	return r.Skip() == nil
}

// Skip passes over the next value, of any type.
func (r *Request) Skip() error {
	_, err := r.Raw()
	return err
}

// Raw reads the next value, of any type, as its MessagePack bytes.
func (r *Request) Raw() ([]byte, error) {
	if err := r.ready(); err != nil {
		return nil, err
	}
	b, err := r.values.bytesOfNext()
	return b, r.took(err)
}

// ArrayLen opens an array: the next reads take its elements, all of them before the values after
// the array.
func (r *Request) ArrayLen() (int, error) {
	if err := r.ready(); err != nil {
		return 0, err
	}
	n, err := r.values.arrayLen()
	if err = r.took(err); err == nil {
		r.nested += n
	}
	return n, err
}

// Options opens the map of options, which is the last parameter. If it is missing or
// nil there are no options. Any other value is an error, and so is a surplus parameter.
func (r *Request) Options() error {
	if err := r.finishNested(); err != nil {
		return err
	}
	switch {
	case r.shape != KindArray:
		return r.badShape()
	case r.count > r.begun+1:
		return r.tooMany(r.begun + 1)
	case r.count == r.begun || r.Nil():
		r.inOptions = true
		return nil
	}
	if kind := r.values.kind(); kind != KindMap {
		return r.took(unexpected("a map of options", kind))
	}
	n, err := r.values.mapLen()
	if err = r.took(err); err == nil {
		r.inOptions, r.options = true, n
	}
	return err
}

// NextOption goes to the next option and returns its name; the typed methods
// then read its value, which may also be left unread. It returns false after
// the last option. A name that occurs twice is returned twice.
func (r *Request) NextOption() (name []byte, ok bool, err error) {
	if err := r.finishNested(); err != nil {
		return nil, false, err
	}
	if r.optionOpen {
		if err := r.Skip(); err != nil {
			return nil, false, err
		}
	}
	if r.options == 0 {
		return nil, false, nil
	}
	if kind := r.values.kind(); kind != KindString && kind != KindBinary {
		return nil, false, Errorf(CodeInvalidParams, "the name of an option must be a string, not %v", kind)
	}
	if r.option, err = r.values.bytes(); err != nil {
		return nil, false, r.invalid(err)
	}
	r.options--
	r.optionOpen = true
	return r.option, true, nil
}

// End returns an error if there are unread params, for a method that takes no more and
// has no options.
func (r *Request) End() error {
	if r.shape != KindArray {
		return r.badShape()
	}
	if r.count > r.begun {
		return r.tooMany(r.begun)
	}
	return nil
}

// ready returns an error if there is no value to read.
func (r *Request) ready() error {
	r.mark = r.values.pos()
	switch {
	case r.shape != KindArray:
		return r.badShape()
	case r.nested > 0, r.inOptions && r.optionOpen, !r.inOptions && r.begun < r.count:
		return nil
	case r.inOptions:
		return Errorf(CodeInvalidParams, "there is no option to read")
	}
	return Errorf(CodeInvalidParams, "parameter %d is missing", r.begun+1)
}

// took counts the value that was read. After an error it goes back to the beginning of
// the value and adds the place to the error.
func (r *Request) took(err error) error {
	switch {
	case err != nil:
		r.values.seek(r.mark)
		return r.invalid(err)
	case r.nested > 0:
		r.nested--
	case r.inOptions:
		r.optionOpen = false
	default:
		r.begun++
	}
	return nil
}

func (r *Request) finishNested() error {
	for r.nested > 0 {
		if err := r.Skip(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Request) invalid(err error) error {
	switch {
	case r.inOptions:
		return Errorf(CodeInvalidParams, "option %s: %v", Excerpt(r.option), err)
	case r.nested > 0:
		return Errorf(CodeInvalidParams, "in parameter %d: %v", r.begun, err)
	}
	return Errorf(CodeInvalidParams, "parameter %d: %v", r.begun+1, err)
}

func (r *Request) badShape() error {
	return Errorf(CodeInvalidParams, "params must be an array, not %v", r.shape)
}

func (r *Request) tooMany(want int) error {
	return Errorf(CodeInvalidParams, "too many parameters: got %d, want at most %d", r.count, want)
}
