package etcdconn

import "testing"

// gRPC lifts every delay by its jitter, the largest too.
func TestReconnectingKeepsItsCap(t *testing.T) {
	if longest := float64(reconnecting.MaxDelay) * (1 + reconnecting.Jitter); longest > float64(reconnectMax) || longest < 0.99*float64(reconnectMax) {
		t.Errorf("a lost member is left alone for up to %v ns, and reconnectMax is %v", longest, reconnectMax)
	}
}
