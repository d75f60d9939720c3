package kazahana

import (
	"time"

	"github.com/kazahana/kazahana/clients/go/internal/msgpack"
)

const maxRequest = 256 << 10 // bytes, as the daemon has it

// request is a call of a method.
type request struct {
	method string
	params []any
	ids    callOptions // if not nil, the options of NextID or NextIDs
}

// Remaining, as a parameter of a call, stands for what the function returns for the time
// that is left, at each attempt.
type Remaining func(left time.Duration) any

// The daemon's time limit is shorter than the call's by this part, and by this much at
// most: the daemon's error says more than a timeout here.
const (
	marginPart = 20
	maxMargin  = 100 * time.Millisecond
)

// maxDaemonWait is the daemon's maximum of timeout_ms.
const maxDaemonWait = time.Hour

// DaemonTime returns how long the daemon may take, so that its answer comes in the time
// that is left.
func DaemonTime(left time.Duration) time.Duration {
	return max(left-min(left/marginPart, maxMargin), 0)
}

// encode appends the request's message.
func (r request) encode(b []byte, msgid byte, left time.Duration) (_ []byte, err error) {
	b = msgpack.AppendString(append(b, 0x94, msgpack.Request, msgid), r.method)
	size := len(r.params)
	if r.ids != nil {
		size++
	}
	b = msgpack.AppendArray(b, size)
	for i, p := range r.params {
		if rest, ok := p.(Remaining); ok {
			p = rest(left)
		}
		if b, err = msgpack.Append(b, p); err != nil {
			return nil, invalid(ErrInvalidParams, "parameter %d of %s: %v", i+1, r.method, err)
		}
	}
	if r.ids != nil {
		b = msgpack.AppendMap(b, len(r.ids)+1)
		for name, value := range r.ids {
			b, _ = msgpack.Append(msgpack.AppendString(b, name), value) // a string or a bool
		}
		b = msgpack.AppendInt(msgpack.AppendString(b, "timeout_ms"), min(DaemonTime(left), maxDaemonWait).Milliseconds())
	}
	if len(b) > maxRequest {
		return nil, invalid(ErrInvalidParams, "a request of %d bytes: at most %d are allowed", len(b), maxRequest)
	}
	return b, nil
}

// reading reads a result.
type reading[T any] func(*msgpack.Reader) (T, error)

func readValue(r *msgpack.Reader) (any, error) { return r.Value(), nil }

func readTexts(r *msgpack.Reader) (texts []string, err error) {
	err = assign(r.Value(), &texts)
	return texts, err
}

// assign stores a result in target: see msgpack.Assign.
func assign(value, target any) error {
	if err := msgpack.Assign(value, target); err != nil {
		return protocolError("the result of the answer: %v", err)
	}
	return nil
}

func readID(r *msgpack.Reader) (ID, error) {
	id := ID(r.Int())
	return id, ascend(0, id)
}

func readIDs(r *msgpack.Reader) ([]ID, error) {
	n, last := r.Array(), ID(0)
	ids, err := make([]ID, 0, min(n, MaxBatch)), error(nil)
	for ; n > 0 && r.Err() == nil; n-- {
		id := ID(r.Int())
		if err == nil {
			err = ascend(last, id)
		}
		ids, last = append(ids, id), id
	}
	return ids, err
}

func ascend(last, id ID) error {
	if id > last {
		return nil
	}
	return protocolError("the answer has the ID %d: IDs are 1 to 2^63-1, and ascend within an answer", id)
}
