package wire

import (
	"bytes"
	"io"
	"net"
	"testing"
)

func BenchmarkSplitter(b *testing.B) {
	msg := request(b, 77, "NextID")
	var s Splitter
	b.ReportAllocs()
	b.SetBytes(int64(len(msg)))
	for b.Loop() {
		if n, _ := s.Scan(msg); n != len(msg) {
			b.Fatal(n)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	msg := request(b, 77, "NextID")
	var r Request
	b.ReportAllocs()
	for b.Loop() {
		if r.Parse(msg) != nil {
			b.Fatal("bad")
		}
	}
}

// BenchmarkNextID is one request and its reply, without a socket.
func BenchmarkNextID(b *testing.B) {
	for name, msg := range map[string][]byte{
		"plain":   request(b, 77, "NextID"),
		"options": request(b, 77, "NextID", map[string]any{"service": "default", "timeout_ms": 1000}),
	} {
		for depth, stream := range map[string][]byte{"one": msg, "pipelined64": bytes.Repeat(msg, 64)} {
			b.Run(name+"/"+depth, func(b *testing.B) {
				conn := NewServerConn(&endless{b: stream}, io.Discard)
				var r Request
				b.ReportAllocs()
				for b.Loop() {
					if conn.Read(&r) != nil {
						b.Fatal("read")
					}
					if _, _, _, err := readOptions(&r); err != nil {
						b.Fatal(err)
					}
					conn.ReplyUint64(r.ID, 1<<62)
					if !conn.Pending() && conn.Flush() != nil {
						b.Fatal("flush")
					}
				}
			})
		}
	}
}

func BenchmarkReplyRanges(b *testing.B) {
	for name, n := range map[string]int{"100": 100, "1000": 1000, "65536": 65536} {
		b.Run(name, func(b *testing.B) {
			var ranges []span
			for i := 0; i < n; i += 256 {
				ranges = append(ranges, span{Start: uint64(i) << 22, Count: min(256, n-i)})
			}
			o := NewOutbox(io.Discard)
			b.ReportAllocs()
			for b.Loop() {
				replyRanges(o, 1, ranges)
				if o.Flush() != nil {
					b.Fatal("flush")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/ID")
		})
	}
}

func BenchmarkClient(b *testing.B) {
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = serve(NewServerConn(far, far))
	}()
	c := NewClient(near)
	b.ReportAllocs()
	for b.Loop() {
		var got uint64
		if err := c.Call(b.Context(), "NextID", &got); err != nil {
			b.Fatal(err)
		}
	}
	c.Close()
	far.Close()
	<-done
}
