package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

func TestPlacementCommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	// A thousand activations: a store that writes no files is quick.
	s.Start("--placement-authority=a:1", "--placement-ttl=1m", "--store", s.Initialised(s.StartRedis().URL()))
	await.Eventually(t, "the daemon is a member", func() bool {
		return strings.Contains(s.Kazahanad("placement").OK(t), "state        member\n")
	})
	want := "state        member\nauthority    a:1\nmembers      a:1, token N, serves nothing\n" +
		"kinds        none: no process on this host has registered\nactivations  0 on this host\n"
	if got := regexp.MustCompile(`token \d+`).ReplaceAllString(s.Kazahanad("placement").OK(t), "token N"); got != want {
		t.Errorf("%s", got)
	}
	want = "actor       room/1\nauthority   none: no process of any member has registered for the kind\nactivation  none on this host\nrecord      none: it was never activated\n"
	if got := s.Kazahanad("placement", "room/1").OK(t); got != want {
		t.Errorf("%s", got)
	}

	client := s.executor()
	const rooms = activationsPage + 1
	var all sync.WaitGroup
	for worker := range 64 {
		all.Go(func() {
			for i := worker; i < rooms; i += 64 {
				if _, err := resolve(t.Context(), client, "room", fmt.Sprintf("%04d\ue000", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if _, err := resolve(t.Context(), client, "hall", "a/b"); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(s.Kazahanad("placement").OK(t), "\n")
	pid := fmt.Sprint(os.Getpid())
	if first := strings.Fields(lines[7]); lines[3] != "kinds        hall, room" || !strings.HasPrefix(lines[6], "ACTOR ") || first[0] != "hall/a/b" || first[1] != pid || first[2] != "1" ||
		!strings.HasPrefix(lines[8], "room/0000? ") {
		t.Errorf("%s", strings.Join(lines, "\n"))
	}
	if len(lines) != 7+rooms+1+1 || !strings.HasPrefix(lines[7+rooms], "room/1000? ") {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-2])
	}
	var report daemon.SnapshotPage
	testkit.DecodeJSON(t, s.Kazahanad("placement", "--json").OK(t), &report)
	if len(report.Activations) != rooms+1 || report.Total != rooms+1 || report.State != "member" || report.Activations[rooms].Identity != "1000\ue000" {
		t.Errorf("%d activations of %d", len(report.Activations), report.Total)
	}

	got := s.Kazahanad("placement", "hall/a/b").OK(t)
	for _, want := range []string{"actor       hall/a/b\n", "activation  process " + pid + ", version 1, token ", "record      a:1: process " + pid + ", version 1, token "} {
		if !strings.Contains(got, want) {
			t.Errorf("%s", got)
		}
	}
	report = daemon.SnapshotPage{}
	testkit.DecodeJSON(t, s.Kazahanad("placement", "--json", "hall/a/b").OK(t), &report)
	if len(report.Activations) != 1 || report.Key == nil || report.Key.Record == nil || report.Key.Record.Owner != "a:1" {
		t.Errorf("%+v", report)
	}
}

// What an actor left behind, and where placement is off or only resolves.
func TestPlacementCommandElsewhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.Start("--placement-authority=a:1")
	client := s.executor()
	await.Eventually(t, "the room lives", func() bool {
		_, err := resolve(t.Context(), client, "room", "1")
		return err == nil
	})
	d.Terminate()
	d = s.Start("--placement-authority=client")
	if got := s.Kazahanad("placement").OK(t); !strings.HasPrefix(got, "state        not_ready\n") || !strings.Contains(got, "authority    none: actors do not live on this host\n") || !strings.Contains(got, "members      none are known\n") {
		t.Errorf("%s", got)
	}
	if got := s.Kazahanad("placement", "room/1").OK(t); !strings.Contains(got, "authority   none: there are no members\n") || !strings.Contains(got, "record      nobody's; the last was version 1, token ") {
		t.Errorf("%s", got)
	}
	d.Terminate()
	s.Start()
	s.Kazahanad("placement").Fails(t, exitFailure, "PLACEMENT_NOT_READY: placement is off", "placement_authority")
	s.Kazahanad("placement", "room/1").Fails(t, exitFailure, "placement is off")
	for _, actor := range []string{"room", "room/", "/1", "a\nb/1"} {
		s.Kazahanad("placement", actor).Fails(t, exitUsage, "invalid: ")
	}
}
