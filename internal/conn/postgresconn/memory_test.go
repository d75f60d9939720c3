package postgresconn

import "testing"

// Of a change that was acknowledged after its life was over, nothing is expected in the
// next one. Nor is another fence due for a loss that has begun one.
func TestChangesOfALifeThatIsOver(t *testing.T) {
	const server = "1/00000001"
	at := func(fences, nextXID int64) life {
		return life{Fence: Fence{Life: string(rune('a' + fences))}, fences: fences, nextXID: nextXID, server: server, session: server}
	}
	s := (&Client{}).Use(Kind{})
	s.note(at(1, 900))
	s.acknowledged(life{fences: 1, xid: 1000})
	if reason := s.remembered().doubt(at(1, 1001)); reason != "" {
		t.Errorf("a transaction that sees the change: %s", reason)
	}
	if reason := s.remembered().doubt(at(1, 1000)); reason != reasonLost {
		t.Errorf("a transaction that does not see the change: %q", reason)
	}
	if reason := s.remembered().doubt(at(2, 1000)); reason != "" {
		t.Errorf("another process has begun a fence: %s", reason)
	}
	s.note(at(2, 950))
	s.acknowledged(life{fences: 1, xid: 1001})
	if reason := s.remembered().doubt(at(2, 951)); reason != "" {
		t.Errorf("a late acknowledgement: %s", reason)
	}
	s.acknowledged(life{fences: 2, xid: 960})
	if reason := s.remembered().doubt(at(2, 951)); reason != reasonLost {
		t.Errorf("a change of the new life is missing: %q", reason)
	}
}
