package main

import (
	"slices"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// A daemon in a user namespace sees all users that it does not map as one. They get IDs,
// but hold no locks, which would belong to all of them; and no list allows one of them.
func TestUsersOfOtherNamespaces(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := newSite(t)
	as := func(uid uint32, args ...string) testkit.Outcome {
		cmd := s.Command(slices.Insert(args, 1, "--socket", s.Socket)...)
		cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: true})
		return testkit.RunCommand(t, cmd)
	}
	serve := s.Command(s.ServeArgs("--socket-mode", "0666")...)
	serve.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, nil)
	serve.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
	serve.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 3001, HostID: 3001, Size: 1}}
	serve.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	d := s.LaunchCommand(serve)
	d.AwaitReady()
	for _, uid := range []uint32{0, 3001} {
		as(uid, "locks", "--json").OK(t)
	}
	c := s.Dial()
	c.Must("Lock.Acquire", nil, "mine")
	as(3002, "id").OK(t)
	as(3002, "seq", "orders").OK(t)
	as(3002, "lock", "theirs", "--", "true").Says(t, exitFailure, "PERMISSION_DENIED", "namespace")
	d.AwaitLog("lock refused: the daemon's user namespace does not map the peer's user")
}
