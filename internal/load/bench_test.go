package load

import "testing"

// What the load generator itself costs for each request, without the system
// calls: that is part of what it measures.

func BenchmarkRequest(b *testing.B) {
	for _, name := range []string{RPC, Echo, Redis, Memcached} {
		b.Run(name, func(b *testing.B) {
			d, err := newDialect(name, 1)
			if err != nil {
				b.Fatal(err)
			}
			out := make([]byte, 0, 4096)
			for b.Loop() {
				out = out[:0]
				for number := range uint32(64) {
					out = d.appendRequest(out, number)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/request")
		})
	}
}

func BenchmarkTake(b *testing.B) {
	d := newRPC(1, "")
	in := answer(firstNumber, 1<<60)
	for b.Loop() {
		d.last = 0
		if n, err := d.take(in, firstNumber); n != len(in) || err != nil {
			b.Fatal(n, err)
		}
	}
}
