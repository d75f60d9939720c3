package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by the linker (see Makefile).
var (
	version = "dev"
	commit  = ""
)

type versionCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// Run prints this binary's version.
func (c *versionCmd) Run(s *system) error {
	if c.JSON {
		return printJSON(s.out, map[string]string{"version": version, "commit": buildCommit(), "go_version": runtime.Version()})
	}
	_, err := fmt.Fprintf(s.out, "kazahanad %s (commit %s, %s)\n", version, buildCommit(), runtime.Version())
	return err
}

// buildCommit returns the commit that the linker set, else the commit that the Go tool recorded.
func buildCommit() string {
	if commit != "" {
		return commit
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}
