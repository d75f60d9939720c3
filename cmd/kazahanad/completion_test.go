package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// What the scripts ask the program for: the words of a command line, of which the last is begun.
// The shell chooses among the offered words, or among files.
func TestCompletion(t *testing.T) {
	t.Parallel()
	const file = ""
	for begun, want := range map[string]string{
		"statu":                       "status",
		"lease-s":                     "lease-server",
		"state acc":                   "accept-epoch",
		"leases ini":                  "init",
		"store fe":                    "fence",
		"serve --log-f":               "--log-format",
		"state reset-floor --ye":      "--yes",
		"serve --log-level w":         "warn",
		"serve --sequence-start=sp":   "spread",
		"id --format ex":              "external",
		"completion fi":               "fish",
		"serve --config onlyhe":       file,
		"lock key --ttl 1m -- onlyhe": file,
	} {
		var offered []string
		for line := range strings.Lines(typed(t, append([]string{"__complete"}, strings.Fields(begun)...)...).Stdout) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			offered = append(offered, word)
		}
		directive := ":4" // no files
		if want == file {
			directive = ":0"
		}
		if want != file && !slices.Contains(offered, want) || offered[len(offered)-1] != directive {
			t.Errorf("%q is completed with %q, want %q and %s", begun, offered, want, directive)
		}
	}
}

// Each shell understands its script.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	ring.All(t)
	s := newSite(t)
	for _, shell := range []string{"bash", "zsh", "fish"} {
		cmd := exec.Command(ring.Program(t, shell), "-n")
		if shell == "fish" {
			cmd.Args = append(cmd.Args, "/dev/stdin")
		}
		cmd.Stdin = strings.NewReader(s.Kazahanad("completion", shell).OK(t))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", shell, err, out)
		}
	}
	s.Kazahanad("completion", "tcsh").Fails(t, exitUsage, "bash, zsh, fish")
}
