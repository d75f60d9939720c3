//go:build linux

package ids

import (
	"context"
	"fmt"
	"os"
)

// parts are run as processes of their own.
var parts = map[string]func(args []string) error{
	"load":       loadMain,
	"hold":       holdMain,
	"echo":       echoMain,
	"generator":  generatorMain,
	"rendezvous": rendezvousMain,
	"start":      startMain,
	"disturb":    disturbMain,
}

// IsPart reports whether the word is the name of such a process.
func IsPart(name string) bool { return parts[name] != nil }

// RunPart is the whole of such a process.
func RunPart(name string, args []string) error {
	if part := parts[name]; part != nil {
		return part(args)
	}
	return fmt.Errorf("there is no part %q", name)
}

// Run is the suite.
func Run(ctx context.Context, args []string) error {
	p, err := parsePlan(args, os.Stderr)
	if err != nil {
		return err
	}
	return run(ctx, p, os.Stdout, os.Stderr)
}
