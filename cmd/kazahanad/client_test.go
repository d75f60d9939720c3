package main

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
)

// A person or a probe is told at once: nothing is waited for, and nothing asked a
// second time, of a daemon that hangs up.
func TestCommandsAskOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	listener, err := net.Listen("unix", s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	var connections atomic.Int64
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { <-over })
	t.Cleanup(func() { _ = listener.Close() })
	for _, args := range []string{"id", "status", "health", "locks", "placement", "lock k -- true"} {
		before := connections.Load()
		s.Kazahanad(strings.Fields(args)...).Fails(t, exitFailure, "connection lost")
		if n := connections.Load() - before; n != 1 {
			t.Errorf("%s connected %d times", args, n)
		}
	}
}
