package admin

import (
	"bytes"
	"net/http"
)

// oneAtATime makes answers one after the other: many at once would take the processors from
// the daemon's clients. A peer that does not read its answer keeps no other waiting.
func oneAtATime(next http.Handler) http.Handler {
	place := make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			return
		case place <- struct{}{}:
		}
		answer := made{ResponseWriter: w, code: http.StatusOK}
		func() {
			defer func() { <-place }()
			next.ServeHTTP(&answer, r)
		}()
		w.WriteHeader(answer.code)
		_, _ = w.Write(answer.body.Bytes())
	})
}

// made is an answer that is written later.
type made struct {
	http.ResponseWriter
	code int
	body bytes.Buffer
}

// WriteHeader implements http.ResponseWriter.
func (m *made) WriteHeader(code int) { m.code = code }

// Write implements http.ResponseWriter.
func (m *made) Write(b []byte) (int, error) { return m.body.Write(b) }
