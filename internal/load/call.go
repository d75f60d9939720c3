package load

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kazahana/kazahana/internal/wire"
)

// Ping is the dialect of Ping.
const Ping = "ping"

const resolvePrefix = "resolve "

// Resolve is the dialect of Placement.Resolve of one actor, whose locality must be the
// given one.
func Resolve(locality, kind, identity string) string {
	return resolvePrefix + locality + " " + kind + "/" + identity
}

// call repeats one request. It checks the first answer completely; later ones must be
// equal to it.
type call struct {
	numbered
	varies int // bytes at the end of an answer that change each time
	check  func(result any) error
	first  []byte // answer; nil before it
}

func newPing() *call {
	return &call{numbered: requestOf("Ping", []any{}), check: func(result any) error {
		if result != "pong" {
			return fmt.Errorf("the answer to Ping is %v", result)
		}
		return nil
	}}
}

// newResolve parses the result of Resolve.
func newResolve(dialect string) (*call, error) {
	const timeSize = 8 // of observed_ms, which comes last
	locality, key, _ := strings.Cut(strings.TrimPrefix(dialect, resolvePrefix), " ")
	kind, identity, ok := strings.Cut(key, "/")
	if !ok {
		return nil, fmt.Errorf("%q is not a dialect: it names no actor", dialect)
	}
	want := [][2]string{{"kind", kind}, {"identity", identity}, {"locality", locality}}
	return &call{numbered: requestOf("Placement.Resolve", []any{kind, identity}), varies: timeSize, check: func(result any) error {
		got, _ := result.(map[string]any)
		for _, w := range want {
			if got[w[0]] != w[1] {
				return fmt.Errorf("Placement.Resolve of %s was answered with %v: %s is not %s", key, result, w[0], w[1])
			}
		}
		return nil
	}}, nil
}

func (c *call) take(b []byte, number uint32) (int, error) {
	size := len(c.first)
	if size > 0 && len(b) >= size && bytes.Equal(b[:numberOffset], c.first[:numberOffset]) &&
		binary.BigEndian.Uint32(b[numberOffset:]) == number &&
		bytes.Equal(b[headSize-1:size-c.varies], c.first[headSize-1:size-c.varies]) {
		return size, nil
	}
	return c.takeFirst(b, number)
}

// takeFirst is take for the first answer.
func (c *call) takeFirst(b []byte, number uint32) (int, error) {
	var splitter wire.Splitter
	size, err := splitter.Scan(b)
	if err != nil {
		return 0, fmt.Errorf("request %d was answered with bytes that are not a message: %w", number, err)
	}
	if size == 0 {
		return 0, nil
	}
	wellBegun := size >= headSize && b[0] == 0x94 && b[1] == 1 && b[2] == 0xce && b[headSize-1] == 0xc0
	if !wellBegun || binary.BigEndian.Uint32(b[numberOffset:]) != number {
		return 0, explain(b, number)
	}
	var result any
	if err := msgpack.Unmarshal(b[headSize:size], &result); err != nil {
		return 0, fmt.Errorf("request %d was answered with a result that cannot be read: %w", number, err)
	}
	if err := c.check(result); err != nil {
		return 0, err
	}
	if c.first != nil {
		return 0, errors.Join(errors.New("the answer to the same request has changed"), explain(b, number))
	}
	c.first = bytes.Clone(b[:size])
	return size, nil
}
