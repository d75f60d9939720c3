// Package memcached answers memcached's text protocol: a get is a request for IDs.
//
// Its keys name services. Each connection has a goroutine.
package memcached

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

var errBadKey = errors.New("bad key")

// binaryRequest is the first byte of each request of memcached's binary protocol.
const binaryRequest = 0x80

const (
	maxKey  = 250     // bytes, as memcached has it
	maxLine = 8 << 10 // bytes of a command with its line break
	maxText = 900     // bytes of an error that every client reads as one line
)

const (
	unknownCommand = "ERROR\r\n"
	badKey         = "CLIENT_ERROR a key has 1 to 250 bytes, and no control characters\r\n"
	notBinary      = "CLIENT_ERROR the binary protocol is not spoken: turn it off in the client\r\n"
	lineTooLong    = "CLIENT_ERROR the line is too long\r\n"
	readOnly       = "SERVER_ERROR this server hands out IDs: it has get, gets, version and quit\r\n"
	end            = "END\r\n"
)

// Refusal is what a peer is sent in place of an answer.
func Refusal(e *wire.Error) []byte {
	text := e.Error()
	return []byte("SERVER_ERROR " + text[:min(len(text), maxText)] + "\r\n")
}

// verb is what a line asks for.
type verb uint8

const (
	verbUnknown verb = iota
	verbGet
	verbGets // with a cas value
	verbVersion
	verbQuit
	verbStore // any command that a block of data follows
	verbHTTP  // no command: a request that a browser was made to send
)

var verbs = map[string]verb{
	"get": verbGet, "gets": verbGets, "version": verbVersion, "quit": verbQuit,
	"set": verbStore, "add": verbStore, "replace": verbStore, "append": verbStore, "prepend": verbStore, "cas": verbStore, "ms": verbStore,
}

// parse splits a line, without its end, into the verb and what follows.
func parse(line []byte) (verb, []byte) {
	word, rest, _ := bytes.Cut(line, []byte{' '})
	var lower [8]byte
	if len(word) > len(lower) {
		return unknown(line), nil
	}
	for i, c := range word {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	if v, ok := verbs[string(lower[:len(word)])]; ok && !isHTTP(line) {
		return v, rest
	}
	return unknown(line), nil
}

func unknown(line []byte) verb {
	if isHTTP(line) {
		return verbHTTP
	}
	return verbUnknown
}

func isHTTP(line []byte) bool { return bytes.Contains(line, []byte(" HTTP/")) }

// nextKey cuts the first key off. key is empty if there is none.
func nextKey(keys []byte) (key, rest []byte) {
	keys = bytes.TrimLeft(keys, " ")
	key, rest, _ = bytes.Cut(keys, []byte{' '})
	return key, rest
}

func validKey(key []byte) bool {
	if len(key) > maxKey {
		return false
	}
	for _, c := range key {
		if c < ' ' || c == 0x7f {
			return false
		}
	}
	return true
}

// serviceOf is the service that a key asks. The key is the service's name, or that and a colon and any
// text: one get can ask a service for several IDs, and a client that puts a prefix before its keys can
// have the name as the prefix.
func serviceOf(d *daemon.Door, key []byte) (*issuer.Service, error) {
	name, _, _ := bytes.Cut(key, []byte{':'})
	service, err := d.Named(name)
	if err != nil && meansDefault(name) {
		return d.ServiceOf(nil)
	}
	if reply, ok := errors.AsType[*wire.Error](err); ok {
		// Django, for example, asks for ":1:id".
		return nil, wire.Errorf(reply.Code, "the key %s does not begin with a service or id (does the client put a prefix before its keys? let it be id: or SERVICE:): %s",
			wire.Excerpt(key), reply.Message)
	}
	return service, err
}

// meansDefault reports whether the name stands for the default service, unless a service has it: id, with
// or without a number, and new, from the documentation of katsubushi.
func meansDefault(name []byte) bool {
	number, id := bytes.CutPrefix(name, []byte("id"))
	return string(name) == "new" || id && len(bytes.Trim(number, "0123456789")) == 0
}

// order is a run of keys of one service in a get.
type order struct {
	service *issuer.Service
	count   int64
}

// readOrders reads the keys of a get, and counts them.
func readOrders(d *daemon.Door, keys []byte) (all []order, count int, err error) {
	for {
		key, rest := nextKey(keys)
		if len(key) == 0 {
			return all, count, nil
		}
		if !validKey(key) {
			return all, count, errBadKey
		}
		service, err := serviceOf(d, key)
		if err != nil {
			return all, count, err
		}
		if last := len(all) - 1; last >= 0 && all[last].service == service {
			all[last].count++
		} else {
			all = append(all, order{service, 1})
		}
		count++
		keys = rest
	}
}

// appendValue appends the answer to a key. Its cas value is the ID again: no two are equal.
func appendValue(out, key []byte, id snowflake.ID, cas bool) []byte {
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], int64(id), 10)
	out = append(out, "VALUE "...)
	out = append(out, key...)
	out = append(out, " 0 "...)
	out = strconv.AppendInt(out, int64(len(text)), 10)
	if cas {
		out = append(out, ' ')
		out = append(out, text...)
	}
	out = append(out, "\r\n"...)
	out = append(out, text...)
	return append(out, "\r\n"...)
}
