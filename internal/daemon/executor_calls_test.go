package daemon

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// A process that does not read keeps only itself waiting, and is asked nothing that has become
// pointless.
func TestExecutorThatDoesNotRead(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w := r.worker()
	calls := r.idleExecutor().calls
	big := strings.Repeat("x", 1<<18)
	done := make(chan error, 16)
	for range 16 { // more than the socket holds
		calls.ask(&executorCall{method: "Activate", params: big, within: time.Millisecond, done: func(err error) { done <- err }})
	}
	for range 16 {
		if err := <-done; err == nil || !strings.Contains(err.Error(), "not answered") {
			t.Errorf("told is %v", err)
		}
	}
	calls.ask(&executorCall{method: "Passivate", params: "last", within: hang, done: func(err error) { done <- err }})
	n := 0
	for {
		var message []any
		must.Succeed(t, w.dec.Decode(&message))
		if n++; message[2] == "Passivate" {
			w.send(pack([]any{1, message[1], nil, nil}))
			break
		}
	}
	if err := <-done; err != nil || n > 16 {
		t.Errorf("%d requests came: %v", n, err)
	}
}

// A crowd of requests waits for a process that is slow, each as long as it takes,
// and it never has more than the window. Calls that are not wanted any more are left out.
func TestCrowdWaitsForItsTurn(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	w := r.worker()
	calls := r.idleExecutor().calls
	const crowd = 2*callWindow + 10
	done := make(chan error, crowd)
	for i := range crowd {
		calls.ask(&executorCall{method: "Activate", params: i, within: hang, wanted: func() bool { return i != crowd-1 }, done: func(err error) { done <- err }})
	}
	ids := make([]any, 0, callWindow)
	for n := range crowd - 1 {
		var message []any
		must.Succeed(t, w.dec.Decode(&message))
		if at, _ := asInt(message[3].([]any)[0]); int(at) != n {
			t.Fatalf("request %d comes in the place of %d", at, n)
		}
		if ids = append(ids, message[1]); len(ids) == callWindow {
			if n := len(calls.snapshot()); n != crowd-callWindow && n != crowd-2*callWindow {
				t.Errorf("%d requests are not sent", n)
			}
			for _, id := range ids {
				w.send(pack([]any{1, id, nil, nil}))
			}
			ids = ids[:0]
		}
	}
	for _, id := range ids {
		w.send(pack([]any{1, id, nil, nil}))
	}
	refused := 0
	for range crowd {
		if err := <-done; errors.Is(err, errNotAsked) {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused != 1 {
		t.Errorf("%d were left out", refused)
	}
}

// snapshot is what waits for its turn.
func (a *executorCalls) snapshot() []*executorCall {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.unsent)
}
