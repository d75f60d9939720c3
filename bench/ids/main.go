//go:build linux

package ids

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// parts are run as processes of their own.
var parts = map[string]func(args []string) error{
	"load":      part(loadMain),
	"hold":      part(holdMain),
	"echo":      echoMain,
	"libraries": part(librariesMain),
	greedyKey:   part(greedyMain),
}

// part is a process whose options come as JSON, in one argument.
func part[T any](run func(T) error) func(args []string) error {
	return func(args []string) error {
		var o T
		if err := json.Unmarshal([]byte(strings.Join(args, " ")), &o); err != nil {
			return err
		}
		return run(o)
	}
}

// arguments is the command line of a part.
func arguments(name string, options any) []string {
	b, err := json.Marshal(options)
	if err != nil {
		panic(err) // every option can be encoded
	}
	return []string{name, string(b)}
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
