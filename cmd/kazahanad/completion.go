package main

type completionCmd struct {
	Shell string `arg:"SHELL" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is the text below the usage line.
func (*completionCmd) Help() string {
	return `The packages install these scripts. Without a package: ` +
		`source <(kazahanad completion bash) in ~/.bashrc, after bash-completion; source <(kazahanad completion zsh) in ~/.zshrc, after compinit; ` +
		`kazahanad completion fish > ~/.config/fish/completions/kazahanad.fish.`
}

// Run prints the script.
func (c *completionCmd) Run(s *system) error {
	switch root := s.commandLine(); c.Shell {
	case "bash":
		return root.GenBashCompletionV2(s.out, true)
	case "zsh":
		return root.GenZshCompletion(s.out)
	default:
		return root.GenFishCompletion(s.out, true)
	}
}
