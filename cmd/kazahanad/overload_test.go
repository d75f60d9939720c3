package main

import (
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// Who asks the daemon about its health hears which limit is reached, also when it was a moment ago.
func TestOverloadIsSeen(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.Start("--max-connections-per-user", "2", "--admin-listen", "unix:"+s.Path("admin.sock"))
	want := "max_connections_per_user is reached: "
	var pong string
	served := func() (c *testkit.Client) {
		await.Eventually(t, "a place is free", func() bool { c = s.Dial(); return c.Try("Ping", &pong) == nil })
		return c
	}
	first := served()
	served()
	if err := s.Dial().Try("Ping", &pong); !isRefusal(err, wire.CodeOverloaded) {
		t.Fatalf("a third connection: %v", err)
	}
	_ = first.Close()
	await.Eventually(t, "a place is free", func() bool { return s.Kazahanad("health").Code == exitOK })
	if status, text := s.Get("/readyz"); status != 200 {
		t.Errorf("/readyz: %d %s", status, text)
	}
	for _, command := range []string{"health", "status", "doctor"} { // each needs the place of the one before
		await.Eventually(t, command+" tells of it", func() bool { return strings.Contains(s.Kazahanad(command).Stdout, want) })
	}
	var page daemonPage
	_, text := s.Get("/status.json")
	testkit.DecodeJSON(t, text, &page)
	if len(page.Overload) != 1 || page.Overload[0].Limit != "max_connections_per_user" || page.Memory.Reservable == 0 {
		t.Errorf("the page's data have %+v, %+v", page.Overload, page.Memory)
	}
	if !logsOf(t, d.Log)[event{"warn", "refusals", "a limit is reached: clients are refused"}] {
		t.Error("the log says nothing of it")
	}
}
