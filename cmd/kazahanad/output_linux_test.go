package main

import (
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// No command succeeds with incomplete output.
func TestOutputIsWholeOrAnError(t *testing.T) {
	t.Parallel()
	ring.All(t)
	s := newSite(t)
	s.Start("--provider", "sqlite:"+s.Leases(), "--store", "sqlite:"+s.Path("store.db"))
	s.Kazahanad("seq", "orders").OK(t) // now the store is open
	reader, gone, err := os.Pipe()
	must.Succeed(t, err)
	must.Succeed(t, reader.Close())
	defer gone.Close()
	// shell runs the command with the redirection, and tells its exit code.
	shell := func(redirection, args string) testkit.Outcome {
		cmd := s.Command()
		cmd.Env = s.Environment("KAZAHANA_SOCKET="+s.Socket, "KAZAHANA_STATE_DIR="+s.State)
		cmd.Args = append([]string{"sh", "-c", redirection, cmd.Path}, strings.Fields(args)...)
		cmd.Path, cmd.ExtraFiles = "/bin/sh", []*os.File{gone}
		return testkit.RunCommand(t, cmd)
	}
	for _, args := range []string{
		"id -n 65536", "id --format json", "seq orders", "bounds 2026-11-01", "inspect 1 2", "status", "health", "version", "--help", "id --help", "serve --help",
		"serve --check --config none --provider none:", "completion bash", "sql postgres", "layout", "locks", "state show --config none",
		"leases --provider sqlite:" + s.Leases(), "doctor --config none", "manual",
	} {
		shell(`exec "$0" "$@" >/dev/full`, args).Fails(t, exitFailure, "stdout: no space left on device", "incomplete")
		for _, ended := range []testkit.Outcome{shell(`"$0" "$@" >&3`, args), shell(`trap "" PIPE; "$0" "$@" >&3`, args)} {
			if ended.Code != exitPipe || ended.Stderr != "" {
				t.Errorf("%s, whose reader has gone, ended with %d and %q", args, ended.Code, ended.Stderr)
			}
		}
	}
	if shell(`ulimit -f 1; exec "$0" "$@" >`+s.Path("limited"), "id -n 65536").Code == exitOK {
		t.Error("a file that cannot grow has all IDs")
	}
}

// A signal ends a command that waits for the daemon without a word.
func TestInterruptedCommand(t *testing.T) {
	t.Parallel()
	ring.All(t)
	s := newSite(t)
	listener, err := net.Listen("unix", s.Socket)
	must.Succeed(t, err)
	defer listener.Close()
	for args, by := range map[string]syscall.Signal{
		"id": syscall.SIGINT, "seq orders": syscall.SIGTERM, "status": syscall.SIGINT, "locks": syscall.SIGTERM, "placement": syscall.SIGINT,
	} {
		cmd := s.Command(strings.Fields(args)...)
		cmd.Env = s.Environment("KAZAHANA_SOCKET=" + s.Socket)
		d := s.LaunchCommand(cmd)
		conn, err := listener.Accept() // and no answer
		must.Succeed(t, err)
		d.Signal(by)
		d.AwaitEnd()
		if said := d.Log.String(); d.Code() != 128+int(by) || said != "" {
			t.Errorf("%s: %v ended it with %d and %q", args, by, d.Code(), said)
		}
		must.Succeed(t, conn.Close())
	}
}
