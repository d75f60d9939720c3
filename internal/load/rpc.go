package load

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kazahana/kazahana/internal/wire"
)

// firstNumber and all later numbers take five bytes in MessagePack, so that all requests
// have one size, and all answers.
const firstNumber = 1 << 16

const (
	numberOffset = 3 // in requests and answers: after the array's head, the type and 0xce
	headSize     = 8 // of an answer: up to and including the error, which is nil
	idSize       = 9 // of an ID: 0xcf and eight bytes
	// One larger answer in sampleEvery is checked ID by ID, the others at both ends
	// only: the load generator shares a core with the server.
	sampleEvery = 64
)

// numbered is a MessagePack-RPC request. appendRequest gives it its number.
type numbered struct{ request []byte }

func requestOf(method string, params []any) numbered {
	request, err := msgpack.Marshal([]any{0, uint32(firstNumber), method, params})
	if err != nil {
		panic(err) // every value in it can be encoded
	}
	return numbered{request}
}

func (r *numbered) appendRequest(b []byte, number uint32) []byte {
	b = append(b, r.request...)
	binary.BigEndian.PutUint32(b[len(b)-len(r.request)+numberOffset:], number)
	return b
}

// rpc speaks MessagePack-RPC to the daemon: NextID for a count of 1, else
// NextIDs.
type rpc struct {
	numbered
	count  int
	result []byte // head of the result in an answer, before the first ID's body
	last   uint64 // the largest ID so far
	taken  uint64 // answers so far
}

func newRPC(count int, service string) *rpc {
	method, params, result := "NextID", []any{}, []byte{}
	if count > 1 {
		method, params = "NextIDs", []any{count}
		out := wire.NewOutbox(nil)
		out.BeginArray(firstNumber, count)
		result = bytes.Clone(out.Unsent()[headSize:])
	}
	if service != "" {
		params = append(params, map[string]any{"service": service})
	}
	return &rpc{numbered: requestOf(method, params), count: count, result: append(result, 0xcf)}
}

func (d *rpc) answerSize() int { return headSize + len(d.result) - 1 + d.count*idSize }

func (d *rpc) take(b []byte, number uint32) (int, error) {
	if n := d.takeOne(b, number); n > 0 {
		return n, nil
	}
	if len(b) < headSize {
		return 0, nil
	}
	wellBegun := b[0] == 0x94 && b[1] == 1 && b[2] == 0xce && b[7] == 0xc0
	if !wellBegun || binary.BigEndian.Uint32(b[numberOffset:]) != number {
		return 0, explain(b, number)
	}
	// Check the result's head first: an answer with fewer IDs must fail at once.
	if got := b[headSize:]; !bytes.HasPrefix(got, d.result[:min(len(d.result), len(got))]) {
		return 0, explain(b, number)
	}
	size := d.answerSize()
	if len(b) < size {
		return 0, nil
	}
	step := max(d.count-1, 1)
	if d.taken%sampleEvery == 0 {
		step = 1
	}
	d.taken++
	ids := b[headSize+len(d.result)-1 : size]
	for i := 0; i < d.count; i += step {
		// There are step-1 others between two checked IDs.
		least := d.last + 1
		if i > 0 {
			least = d.last + uint64(step)
		}
		id := binary.BigEndian.Uint64(ids[i*idSize+1:])
		if ids[i*idSize] != 0xcf || id < least {
			return 0, fmt.Errorf("request %d was answered with an ID that is no integer, or not above the one before it on this connection: "+
				"ID %d of %d is %d (% x), and must be %d or more", number, i+1, d.count, id, ids[i*idSize:(i+1)*idSize], least)
		}
		d.last = id
	}
	return size, nil
}

// takeOne is take for a correct answer to NextID, the most frequent one by far. For any
// other it returns 0 and changes nothing.
func (d *rpc) takeOne(b []byte, number uint32) int {
	const size = headSize + idSize
	if d.count != 1 || len(b) < size {
		return 0
	}
	b = b[:size:size]
	id := binary.BigEndian.Uint64(b[headSize+1:])
	if b[0] != 0x94 || b[1] != 1 || b[2] != 0xce || b[7] != 0xc0 || b[headSize] != 0xcf ||
		binary.BigEndian.Uint32(b[numberOffset:]) != number || id <= d.last {
		return 0
	}
	d.last = id
	d.taken++
	return size
}

// explain is the error for a wrong answer; nil while the answer is incomplete.
func explain(b []byte, number uint32) error {
	var splitter wire.Splitter
	size, err := splitter.Scan(b)
	if err != nil {
		return fmt.Errorf("request %d was answered with bytes that are not a message: %w", number, err)
	}
	if size == 0 {
		return nil
	}
	var answer []any
	if err := msgpack.Unmarshal(b[:size], &answer); err == nil && len(answer) == 4 && b[1] == 1 && answer[2] != nil {
		if pair, ok := answer[2].([]any); ok && len(pair) == 2 {
			answer[2] = pair[1] // beside its kind, the text
		}
		return fmt.Errorf("request %d was answered with the error %v", number, answer[2])
	}
	const shown = 64
	return fmt.Errorf("request %d was answered with something else than what was asked for: % x", number, b[:min(size, shown)])
}
