package main

import (
	"os"

	"github.com/kazahana/kazahana/internal/operator/manual"
)

// manualCmd prints man pages for packages. They are generated from the command line,
// so they are never out of date.
type manualCmd struct {
	Sample string `arg:"SAMPLE" optional:"" help:"A commented configuration, to print the page about it."`
}

// Run prints a manual page in roff: of the configuration, or of the command.
func (c *manualCmd) Run(s *system) error {
	if c.Sample == "" {
		return manual.Command(s.out, s.commandLine(), version)
	}
	sample, err := os.ReadFile(c.Sample)
	if err != nil {
		return err
	}
	return manual.Config(s.out, c.Sample, sample, version)
}
