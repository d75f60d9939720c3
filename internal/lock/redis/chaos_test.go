package redis

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// What clients see of a server that is frozen, or killed and started again, is
// what a lock can do, whatever became of the requests under way.
func TestChaos(t *testing.T) {
	const (
		clients  = 4
		blows    = 6
		between  = 250 * time.Millisecond
		patience = 150 * time.Millisecond // less than a freeze
	)
	for name, blow := range map[string]func(*redistest.Server){
		"frozen": func(s *redistest.Server) {
			s.Signal(syscall.SIGSTOP)
			time.Sleep(2 * patience)
			s.Signal(syscall.SIGCONT)
		},
		"killed": func(s *redistest.Server) { s.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			server := persistent(t)
			cfg := server.Config()
			cfg.FailoverFenceSet = true // what was answered is on the disk
			var stores []lock.Store
			for range clients {
				s, err := open(t, cfg, Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if err := s.Init(testContext(t)); err != nil {
					t.Fatal(err)
				}
				stores = append(stores, s)
			}
			ctx, cancel := context.WithCancel(testContext(t))
			done := make(chan struct{})
			go func() {
				defer close(done)
				calls, unknown, err := locktest.Hammer(ctx, stores, locktest.Allowed{Jumps: true}, lock.MinTTL, patience)
				if err != nil {
					t.Error(err)
				}
				t.Logf("%d calls, of %d nobody knows the outcome", calls, unknown)
				if calls == unknown || unknown == 0 && name == "frozen" {
					t.Error("the test does not show what it should")
				}
			}()
			for range blows {
				time.Sleep(between)
				blow(server)
			}
			cancel()
			<-done
		})
	}
}
