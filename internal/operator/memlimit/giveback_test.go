package memlimit

import (
	"context"
	"testing"
	"time"
)

// A process that needs its memory is asked for it less and less often; one whose clients
// have gone gives it back at the next look.
func TestGiver(t *testing.T) {
	const much = 64 << 20
	g := giver{pause: giveBackFirst}
	after := func(load, inUse int64, want time.Duration) {
		t.Helper()
		for waited := giveBackLook; waited <= 2*giveBackLast; waited += giveBackLook {
			if g.due(load, inUse) {
				if waited != want {
					t.Fatalf("it is due after %v, want %v", waited, want)
				}
				return
			}
		}
		if want != 0 {
			t.Fatalf("it is not due within %v", 2*giveBackLast)
		}
	}
	after(much, littleMemory, 0)
	for _, want := range []time.Duration{1, 2, 4, 8} {
		after(much, much, want*giveBackFirst)
		g.gave(worthwhile - 1)
	}
	for range 3 {
		after(much, much, giveBackLast)
		g.gave(-much) // it has grown meanwhile
	}
	after(much/4, much, giveBackLook)
	g.gave(worthwhile)
	after(much/4, much, giveBackFirst) // not again: nobody has gone
	g.gave(0)
	after(much/4, littleMemory, 0)
	after(much/4, much, giveBackFirst)
}

func TestGiveBackEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	GiveBack(ctx, nil)
}
