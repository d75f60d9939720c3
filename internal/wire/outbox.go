package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/vmihailenco/msgpack/v5"
)

// HighWater is how many bytes of replies wait at most before they are written.
const HighWater = largeBuffer

// structTag is the tag that names the fields of structs on the wire, so that
// one struct serves JSON and MessagePack.
const structTag = "json"

// An Outbox encodes replies into one buffer and writes it at Flush, or by itself when
// HighWater is reached. After an error of the writer, Flush returns that error and
// further replies are dropped. Without a writer everything stays in the buffer, for an
// event loop that sends Unsent itself.
//
// An Outbox is not safe for concurrent use. It must not be copied.
type Outbox struct {
	_ noCopy

	w    io.Writer
	out  sink
	enc  *msgpack.Encoder // writes to out
	left int              // elements still due of the array begun
	err  error
}

// NewOutbox returns an Outbox that writes to w, which may be nil.
func NewOutbox(w io.Writer) *Outbox {
	o := new(Outbox)
	o.init(w)
	return o
}

func (o *Outbox) init(w io.Writer) {
	o.w = w
	o.enc = newEncoder(&o.out)
}

func newEncoder(w io.Writer) *msgpack.Encoder {
	enc := msgpack.NewEncoder(w)
	enc.SetCustomStructTag(structTag)
	enc.SetSortMapKeys(true)
	return enc
}

// ReplyUint64 answers with an unsigned integer, always in its 9-byte form: the
// type that a client sees does not depend on the value.
func (o *Outbox) ReplyUint64(id uint32, v uint64) {
	if o.begin(id) {
		o.out.buf = binary.BigEndian.AppendUint64(append(o.out.buf, codeUint64), v)
	}
}

// ReplyConsecutive answers each of the requests with the next integer from first on, as ReplyUint64
// does, in half of the time.
func (o *Outbox) ReplyConsecutive(ids []uint32, first uint64) {
	for len(ids) > 0 && o.ready() {
		n := len(ids)
		if o.w != nil {
			n = min(n, smallBuffer/maxScalarReply) // for which there is room now
		}
		o.out.grow(n * maxScalarReply)
		at := len(o.out.buf)
		room := o.out.buf[:at+n*maxScalarReply]
		for _, id := range ids[:n] {
			at += putReply(room[at:], id, first)
			first++
		}
		o.out.buf, ids = room[:at], ids[n:]
	}
}

// putReply writes the answer with an integer to b, which has room for maxScalarReply bytes, and
// returns its length. Clients' msgids are mostly large.
func putReply(b []byte, id uint32, v uint64) int {
	if id <= math.MaxUint16 {
		head := appendUint(append(b[:0], codeArray4, byte(TypeResponse)), id)
		return len(binary.BigEndian.AppendUint64(append(head, codeNil, codeUint64), v))
	}
	_ = b[maxScalarReply-1]
	b[0], b[1], b[2] = codeArray4, byte(TypeResponse), codeUint32
	binary.BigEndian.PutUint32(b[3:], id)
	b[7], b[8] = codeNil, codeUint64
	binary.BigEndian.PutUint64(b[9:], v)
	return maxScalarReply
}

// ReplyString answers with a string.
func (o *Outbox) ReplyString(id uint32, v string) {
	if o.begin(id) {
		o.must(o.enc.EncodeString(v))
	}
}

// ReplyAny answers with anything that the msgpack library can encode; structs
// become maps with the names of their json tags. An error means that v cannot
// be encoded: nothing was answered then, and the request still waits for a reply.
//
// The library ignores json.Marshaler, and encodes a time.Time as an extension type,
// which many clients, ours included, do not read. Pass times as strings or numbers, and
// IDs as uint64.
func (o *Outbox) ReplyAny(id uint32, v any) error {
	if !o.ready() {
		return nil
	}
	mark := len(o.out.buf)
	o.head(id)
	o.must(o.enc.EncodeNil())
	if err := o.enc.Encode(v); err != nil {
		o.out.buf = o.out.buf[:mark]
		return fmt.Errorf("wire: encode a result: %w", err)
	}
	return nil
}

// Notify sends a notification. The peer must have asked for it. An error means that a
// parameter cannot be encoded, and nothing is sent.
func (o *Outbox) Notify(method string, params ...any) error {
	return o.ask(method, params, func() {
		o.must(o.enc.EncodeArrayLen(3))
		o.must(o.enc.EncodeUint(uint64(TypeNotification)))
	})
}

// Request sends a request, which the peer must have asked for. Its answer is read
// like a request from the peer, and has the same id; see Request.Answer. The ids of
// both directions have nothing to do with each other. An error means that a
// parameter cannot be encoded, and nothing is sent.
func (o *Outbox) Request(id uint32, method string, params ...any) error {
	return o.ask(method, params, func() {
		o.must(o.enc.EncodeArrayLen(4))
		o.must(o.enc.EncodeUint(uint64(TypeRequest)))
		o.must(o.enc.EncodeUint(uint64(id)))
	})
}

// ask sends a message that begins with the head.
func (o *Outbox) ask(method string, params []any, head func()) error {
	if !o.ready() {
		return nil
	}
	mark := len(o.out.buf)
	head()
	o.must(o.enc.EncodeString(method))
	o.must(o.enc.EncodeArrayLen(len(params)))
	for _, p := range params {
		if err := o.enc.Encode(p); err != nil {
			o.out.buf = o.out.buf[:mark]
			return fmt.Errorf("wire: encode %s: %w", method, err)
		}
	}
	return nil
}

// ReplyError answers with an error.
func (o *Outbox) ReplyError(id uint32, e *Error) {
	if !o.ready() {
		return
	}
	o.head(id)
	o.must(o.enc.EncodeArrayLen(2))
	o.must(o.enc.EncodeUint(uint64(e.Kind)))
	o.must(o.enc.EncodeString(e.Error()))
	o.must(o.enc.EncodeNil())
}

// ReplyEncoded sends an answer that another Outbox has encoded. It is not copied if there
// is a writer: what waits is written before it, and it then at once.
func (o *Outbox) ReplyEncoded(answer []byte) {
	switch {
	case !o.ready():
	case o.w == nil:
		_, _ = o.out.Write(answer)
	default:
		if o.write(); o.err == nil {
			_, o.err = o.w.Write(answer)
		}
	}
}

// BeginArray begins an answer that is an array. Exactly n elements must be appended
// before the next answer. Any other number would corrupt the stream, and panics.
func (o *Outbox) BeginArray(id uint32, n int) {
	if n < 0 {
		panic(fmt.Sprintf("wire: an array of %d elements", n))
	}
	if o.begin(id) {
		o.must(o.enc.EncodeArrayLen(n))
		o.out.grow(min(uint64Size*n, HighWater-len(o.out.buf)))
		o.left = n
	}
}

const (
	// uint64Size is the size of an integer in its longest form.
	uint64Size = 9
	// maxScalarReply is the size of an answer that is one integer: the array's
	// head, the type, a msgid, nil and the integer, each at its longest.
	maxScalarReply = 1 + 1 + 5 + 1 + uint64Size
)

// AppendRange appends the n integers from start on, each in its 9-byte form.
func (o *Outbox) AppendRange(start uint64, n int) {
	for n > 0 && o.room(uint64Size) {
		chunk := n
		if o.w != nil {
			chunk = min(n, (HighWater-len(o.out.buf))/uint64Size)
		}
		o.took(chunk)
		o.out.grow(uint64Size * chunk)
		o.out.buf = appendRange(o.out.buf, start, chunk)
		start += uint64(chunk)
		n -= chunk
	}
}

// AppendString appends a string.
func (o *Outbox) AppendString(v string) {
	if o.room(len(v) + uint64Size) {
		o.took(1)
		o.must(o.enc.EncodeString(v))
	}
}

// Flush writes the buffer. It returns the first error of the writer, now or before.
func (o *Outbox) Flush() error {
	if o.w == nil {
		return nil
	}
	burst := len(o.out.buf)
	o.write()
	o.out.shrink(burst)
	return o.err
}

// write empties the buffer and keeps its size.
func (o *Outbox) write() {
	if o.err == nil && len(o.out.buf) > 0 {
		n, err := o.w.Write(o.out.buf)
		if err == nil && n < len(o.out.buf) {
			err = io.ErrShortWrite
		}
		o.err = err
	}
	o.out.buf = o.out.buf[:0]
}

// Unsent returns the waiting bytes. They are valid until the next call of any method.
func (o *Outbox) Unsent() []byte { return o.out.buf }

// Sent tells that the first n bytes of Unsent are on their way.
func (o *Outbox) Sent(n int) {
	if n == len(o.out.buf) {
		o.out.buf = o.out.buf[:0]
		o.out.shrink(n)
		return
	}
	o.out.buf = o.out.buf[:copy(o.out.buf, o.out.buf[n:])]
}

// begin encodes an answer up to its result, and reports whether to encode the result.
func (o *Outbox) begin(id uint32) bool {
	if !o.ready() {
		return false
	}
	o.head(id)
	o.out.buf = append(o.out.buf, codeNil)
	return true
}

// ready makes room for an answer's head and a scalar.
func (o *Outbox) ready() bool {
	if o.left > 0 && o.err == nil {
		panic(fmt.Sprintf("wire: an answer begun while %d elements of an array are due", o.left))
	}
	return o.room(smallBuffer)
}

// head begins an answer. The common parts of answers are written without the library,
// which takes several times as long.
func (o *Outbox) head(id uint32) {
	o.out.grow(maxScalarReply)
	o.out.buf = appendUint(append(o.out.buf, codeArray4, byte(TypeResponse)), id)
}

// room makes sure that n bytes fit below HighWater, and reports whether to encode them.
func (o *Outbox) room(n int) bool {
	if o.w != nil && len(o.out.buf) > 0 && len(o.out.buf)+n > HighWater {
		o.write()
	}
	return o.err == nil
}

func (o *Outbox) took(n int) {
	if o.left -= n; o.left < 0 {
		panic(fmt.Sprintf("wire: %d elements more than the array was begun with", -o.left))
	}
}

// must is for encoding into memory, which cannot fail.
func (o *Outbox) must(err error) {
	if err != nil {
		panic("wire: encoding into memory failed: " + err.Error())
	}
}

// sink is the memory that an encoder writes to.
type sink struct {
	buf    []byte
	memory Memory // nil: not counted
}

func (s *sink) Write(b []byte) (int, error) {
	s.grow(len(b))
	s.buf = append(s.buf, b...)
	return len(b), nil
}

func (s *sink) WriteByte(c byte) error {
	s.grow(1)
	s.buf = append(s.buf, c)
	return nil
}

// grow makes room for n more bytes.
func (s *sink) grow(n int) {
	if need := len(s.buf) + n; need > cap(s.buf) {
		s.move(max(need, nextSize(cap(s.buf))))
	}
}

func (s *sink) move(size int) {
	if n := sizeOf(size); s.memory != nil && n > FreeBuffer {
		s.memory.Take(n) // may wait, and the new buffer is made afterwards
	}
	buf := borrow(size)
	buf = buf[:copy(buf, s.buf)]
	s.drop()
	s.buf = buf
}

// drop gives the buffer back.
func (s *sink) drop() {
	if s.memory != nil && cap(s.buf) > FreeBuffer {
		s.memory.Give(cap(s.buf))
	}
	giveBack(s.buf)
}

// shrink reduces an empty buffer to the size to keep after a burst of that many bytes.
func (s *sink) shrink(burst int) {
	if size := idleSize(burst); cap(s.buf) > size {
		s.move(size)
	}
}
