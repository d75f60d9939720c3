package main

import (
	"github.com/alecthomas/kong"

	"github.com/kazahana/kazahana/internal/operator/manual"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is the text that kong prints below the usage line.
func (*completionCmd) Help() string {
	return `The packages install these scripts. Without a package: ` +
		`source <(kazahanad completion bash) in ~/.bashrc; source <(kazahanad completion zsh) in ~/.zshrc, after compinit; ` +
		`kazahanad completion fish > ~/.config/fish/completions/kazahanad.fish.`
}

// Run prints the script.
func (c *completionCmd) Run(s *system, k *kong.Context) error {
	return manual.Completion(s.out, c.Shell, k.Model)
}
