package guard

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// attack is what a connection without a credential does to keep its place.
type attack struct {
	http2  bool
	first  string
	flood  string // sent again and again, after first
	unread bool   // it never reads
}

// frame is a frame of HTTP/2.
func frame(kind, flags byte, stream uint32, payload string) string {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	return string(binary.BigEndian.AppendUint32(append(head, flags), stream)) + payload
}

// Kinds, flags and settings of frames.
const (
	headers, reset, settings, ping, continuation = 1, 3, 4, 6, 9

	endStream, endHeaders = 1, 4
	noWindow              = "\x00\x04\x00\x00\x00\x00" // SETTINGS_INITIAL_WINDOW_SIZE 0
	preface               = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
)

// get is the header block of a GET without indexing.
func get(path string) string { return "\x82\x87\x04" + string(byte(len(path))) + path + "\x41\x01x" }

// request1 and request2 ask for the root over HTTP/1 and HTTP/2.
const request1 = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

func resets() string {
	var b strings.Builder
	for stream := uint32(1); stream < 2000; stream += 2 {
		b.WriteString(frame(headers, endStream|endHeaders, stream, get("/")) + frame(reset, 0, stream, "\x00\x00\x00\x08"))
	}
	return b.String()
}

var attacks = map[string]attack{
	"silent":                 {},
	"half a head":            {first: "GET / HTTP/1.1\r\nHost: x\r\nX-A: "},
	"a head without end":     {first: "GET / HTTP/1.1\r\nHost: x\r\n", flood: "X"},
	"kept alive":             {first: request1},
	"a flood of requests":    {first: request1, flood: request1},
	"an answer is not read":  {first: "GET /large HTTP/1.1\r\nHost: x\r\n\r\n", unread: true},
	"answers are not read":   {first: request1, flood: request1, unread: true},
	"a body that never ends": {first: "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx"},

	"HTTP/2: no preface":             {http2: true},
	"HTTP/2: preface only":           {http2: true, first: preface + frame(settings, 0, 0, "")},
	"HTTP/2: pings":                  {http2: true, first: preface + frame(settings, 0, 0, ""), flood: frame(ping, 0, 0, "12345678")},
	"HTTP/2: pings, nothing is read": {http2: true, first: preface + frame(settings, 0, 0, ""), flood: frame(ping, 0, 0, "12345678"), unread: true},
	"HTTP/2: settings":               {http2: true, first: preface + frame(settings, 0, 0, ""), flood: frame(settings, 0, 0, "")},
	"HTTP/2: headers without end": {http2: true, first: preface + frame(settings, 0, 0, "") +
		frame(headers, 0, 1, get("/")), flood: frame(continuation, 0, 1, "\x00\x01a\x01b")},
	"HTTP/2: rapid reset": {http2: true, first: preface + frame(settings, 0, 0, "") + resets()},
	"HTTP/2: an answer without a window": {http2: true, first: preface + frame(settings, 0, 0, noWindow) +
		frame(headers, endStream|endHeaders, 1, get("/large")), flood: frame(ping, 0, 0, "12345678")},
}

// attack opens a connection that goes on with the attack until the test's end.
func (s *site) attack(a attack) net.Conn {
	s.Helper()
	raw := s.dial()
	c := raw
	if a.http2 {
		over := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err := over.Handshake(); err != nil {
			s.Fatal(err)
		}
		c = over
	}
	var doing sync.WaitGroup
	s.Cleanup(func() {
		_ = raw.Close()
		doing.Wait()
	})
	doing.Go(func() {
		_, err := io.WriteString(c, a.first)
		for err == nil && a.flood != "" {
			_, err = io.WriteString(c, a.flood)
		}
	})
	if strings.Contains(a.first, "/large") {
		select {
		case <-s.writing:
		case <-time.After(long):
			s.Error("the connection is not served")
		}
	}
	if !a.unread && a.flood != "" {
		doing.Go(func() { _, _ = io.Copy(io.Discard, c) })
	}
	return c
}
