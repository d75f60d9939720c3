package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// asked sends the store a request for one key; without a token if that is "".
func (s *store) asked(method, token, body string) (status int, answer string) {
	r := httptest.NewRequest(method, "/notes", strings.NewReader(body))
	if token != "" {
		r.Header.Set("Fencing-Token", token)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}

// A reads, and is paused past its term. B takes over, and A wakes. A late write is refused
// even if the new holder has only read so far: else what that writes would not have A's part.
// TestChaos has processes that are stopped like this (LS-FENCE-001).
func TestLateWriter(t *testing.T) {
	const old = "the fencing token 1 is old: another client came with 2"
	for _, test := range []struct {
		name          string
		check, writes bool   // B does before A wakes
		late          string // the answer to A's write
		value         string
	}{
		{"without the check B's update is lost", false, true, "", "first A"},
		{"with the check A is refused", true, true, old, "first B"},
		{"also if B has only read", true, false, old, "first B"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &store{check: test.check, entries: map[string]entry{}}
			must := func(method, token, body, want string) {
				t.Helper()
				if status, answer := s.asked(method, token, body); status != http.StatusOK || answer != want {
					t.Fatalf("%s %q with token %s: status %d, %q, want %q", method, body, token, status, answer, want)
				}
			}
			wake := func() {
				t.Helper()
				status, answer := s.asked(http.MethodPut, "1", "first A")
				if answer != test.late || (status == http.StatusConflict) != (test.late == old) {
					t.Errorf("A's write: status %d, %q, want %q", status, answer, test.late)
				}
			}
			must(http.MethodPut, "0", "first", "")
			must(http.MethodGet, "1", "", "first")
			must(http.MethodGet, "2", "", "first")
			if !test.writes {
				wake()
			}
			must(http.MethodPut, "2", "first B", "")
			must(http.MethodGet, "2", "", "first B")
			if test.writes {
				wake()
			}
			must(http.MethodGet, "2", "", test.value)
		})
	}
}

func TestStoreWantsAToken(t *testing.T) {
	s := &store{check: true, entries: map[string]entry{}}
	if status, answer := s.asked(http.MethodPut, "", "x"); status != http.StatusBadRequest || !strings.Contains(answer, "Fencing-Token") {
		t.Errorf("without a token: %d %q", status, answer)
	}
}
