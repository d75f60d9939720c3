//go:build linux

package abuse

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"time"
)

// onMemory are the attacks on the daemon's memory, its connections and its decoder.
var onMemory = []attack{
	{name: "half messages", users: 1, begin: func(a *attacker) { a.keep(2000, a.socket, a.half) }},
	{name: "half messages of many users", users: 8, begin: func(a *attacker) { a.keep(500, a.socket, a.half) }},
	{name: "half messages in small pieces", users: 1, begin: func(a *attacker) { a.keep(8000, a.socket, a.pieces) }},
	{name: "half messages, all at once", users: 2, begin: func(a *attacker) { a.keep(3000, a.socket, a.atOnce) }},
	{name: "a byte on each connection", users: 1, quiet: true, begin: func(a *attacker) { a.keep(16_000, a.socket, a.byteEach) }},
	{name: "idle connections", users: 1, quiet: true, begin: func(a *attacker) { a.keep(18_000, a.socket, untilEnd) }},
	{name: "idle connections of many users", users: 4, quiet: true, begin: func(a *attacker) { a.keep(6000, a.socket, untilEnd) }},
	{name: "connections that come and go", users: 4, begin: func(a *attacker) { a.keep(64, a.socket, a.oncePerDial) }},
	{name: "connections of a forbidden user", users: 4, serve: []string{"--allow-uids", "0"},
		begin: func(a *attacker) { a.keep(64, a.socket, a.oncePerDial) }},
	{name: "IDs never read", users: 1, begin: func(a *attacker) { a.keep(400, a.socket, a.unread("NextIDs", 65_536)) }},
	{name: "IDs never read, many connections", users: 2, begin: func(a *attacker) { a.keep(6000, a.socket, a.unread("NextIDs", 3000)) }},
	{name: "status never read", users: 1, begin: func(a *attacker) { a.keep(1500, a.socket, a.unread("Status")) }},
	{name: "garbage", users: 2, begin: func(a *attacker) { a.keep(64, a.socket, a.garbage) }},
	{name: "mutated requests", users: 2, begin: func(a *attacker) { a.keep(64, a.socket, a.mutated) }},
	{name: "MessagePack bombs", users: 2, begin: func(a *attacker) { a.keep(200, a.socket, a.bombs) }},
	{name: "greatest whole messages", users: 2, begin: func(a *attacker) { a.keep(200, a.socket, a.pour(greatest)) }},
}

const mostOfAMessage = 1_048_000 // bytes; the limit is a little more

// beginning is the head of a request whose one parameter is so many bytes.
func beginning(size int) []byte {
	head := append([]byte{0x94, 0, 1, 0xa4}, "Ping"...)
	return binary.BigEndian.AppendUint32(append(head, 0x91, 0xc6), uint32(size))
}

// half sends nearly all of a large message, and no more.
func (a *attacker) half(conn net.Conn) {
	onlyThis(conn, append(beginning(mostOfAMessage+100), make([]byte, mostOfAMessage)...))
}

// pieces sends as much as fits into a small buffer, so that no message is large.
func (a *attacker) pieces(conn net.Conn) {
	const piece = 4000
	onlyThis(conn, append(beginning(mostOfAMessage), make([]byte, piece)...))
}

// atOnce sends as much as is read at a time, when all other connections do.
func (a *attacker) atOnce(conn net.Conn) {
	const every, piece = time.Second, 60_000
	time.Sleep(time.Until(time.Now().Truncate(every).Add(every)))
	onlyThis(conn, append(beginning(mostOfAMessage), make([]byte, piece)...))
}

func (a *attacker) byteEach(conn net.Conn) {
	onlyThis(conn, []byte{0x94})
}

// oncePerDial asks once and hangs up.
func (a *attacker) oncePerDial(conn net.Conn) {
	_, _ = conn.Write(pack(1, "Ping"))
	a.now.asked.Add(1)
	_, _ = conn.Read(make([]byte, 64))
}

// unread asks again and again, and reads nothing.
func (a *attacker) unread(method string, params ...any) func(net.Conn) {
	request := pack(1, method, params...)
	return func(conn net.Conn) { a.ask(conn, func(int) []byte { return request }) }
}

// garbage sends random bytes.
func (a *attacker) garbage(conn net.Conn) {
	a.pour(func(n int) []byte {
		if n > 10 {
			return nil
		}
		b := make([]byte, 1+rand.N(2000))
		for i := range b {
			b[i] = byte(rand.Uint32())
		}
		return b
	})(conn)
}

// mutated sends requests of which some bytes are wrong.
func (a *attacker) mutated(conn net.Conn) {
	requests := [][]byte{
		pack(1, "NextID", options{"service": "default", "timeout_ms": 5}), pack(2, "NextIDs", 9), pack(3, "Lock.Get", "k"),
		pack(4, "Lock.Acquire", "k", options{"ttl_ms": 100, "wait_ms": 1}), pack(5, "Sequence.Next", "k"), pack(6, "Inspect", 1<<60),
		pack(7, "Lock.List", options{"after": "a", "limit": 5}), pack(8, "Placement.Snapshot"), pack(9, "Status"),
	}
	a.pour(func(int) []byte {
		b := bytes.Clone(requests[rand.N(len(requests))])
		for range rand.N(4) {
			b[rand.N(len(b))] = byte(rand.Uint32())
		}
		return b
	})(conn)
}

// bombs are messages that claim to be, or are, much more than they seem.
func (a *attacker) bombs(conn net.Conn) {
	fill := func(one string) []byte { return bytes.Repeat([]byte(one), 1_000_000/len(one)) }
	call := "\x94\x00\x01\xa4Ping"
	all := [][]byte{
		[]byte("\xdd\xff\xff\xff\xff"), []byte("\xdf\xff\xff\xff\xff"), []byte("\xc6\xff\xff\xff\xff"),
		[]byte(call + "\xdd\xff\xff\xff\xff"), append([]byte(call), fill("\x91")...), append([]byte(call), fill("\x81\xc0")...),
		append([]byte(call+"\xdd\x00\x0f\x42\x40"), fill("\x90")...), append([]byte(call+"\xdf\x00\x07\xa1\x20"), fill("\xc0\x80")...),
	}
	a.pour(func(n int) []byte {
		if n > 0 {
			return nil
		}
		return all[rand.N(len(all))]
	})(conn)
}

// greatest is a whole message of nearly the greatest size.
func greatest(n int) []byte {
	return pack(n, fmt.Sprint("No.", n), make([]byte, mostOfAMessage))
}
