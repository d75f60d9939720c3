package main

import "github.com/kazahana/kazahana/internal/operator/manual"

// manualCmd prints the man page for packages. It is generated from the command line, so it is
// never out of date.
type manualCmd struct{}

// Run prints the page in roff.
func (*manualCmd) Run(s *system) error { return manual.Command(s.out, s.commandLine(), version) }
