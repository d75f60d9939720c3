package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/alecthomas/kong"
	"github.com/posener/complete"
	"github.com/willabides/kongplete"
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

// completionScripts lead a shell to the program itself, which tells the words that can
// follow the line in COMP_LINE. Where it tells none, the shell offers files. zsh and fish
// want a flag's name before its value.
var completionScripts = map[string]string{
	"bash": `complete -o default -o bashdefault -C kazahanad kazahanad
`,
	"zsh": `#compdef kazahanad

_kazahanad() {
  local -a found
  found=(${(f)"$(COMP_LINE="${(j: :)words[1,CURRENT]}" kazahanad)"})
  compset -P '--*='
  compadd -a found || _files
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _kazahanad "$@"
else
  compdef _kazahanad kazahanad
fi
`,
	"fish": `function __kazahanad_complete
    set -l flag (string match -r '^--[^=]*=' -- (commandline -ct))
    set -lx COMP_LINE (string join ' ' -- (commandline -opc) (commandline -ct))
    set -l found (kazahanad)
    if set -q found[1]
        printf "$flag%s\n" $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c kazahanad -f -a '(__kazahanad_complete)'
`,
}

// Run prints the script.
func (c *completionCmd) Run(s *system) error {
	_, err := s.out.Write([]byte(completionScripts[c.Shell]))
	return err
}

// completes answers a shell that asks what can follow a line, and reports whether one did.
func (s *system) completes(parser *kong.Kong) bool {
	if line, asked := s.lookup("COMP_LINE"); !asked || line == "" {
		return false
	}
	words, err := kongplete.Command(parser)
	if err != nil {
		panic(err) // the definition of cli is wrong
	}
	refine(parser.Model.Node, &words)
	answer := complete.New(parser.Model.Name, words)
	answer.Out = s.out
	return answer.Complete()
}

// refine adds what kongplete does not know: the flags of a default subcommand, and that CMD
// is a program.
func refine(node *kong.Node, words *complete.Command) {
	if n := len(node.Positional); n > 0 && node.Positional[n-1].Name == "CMD" {
		words.Args = complete.PredictFunc(predictProgram)
	}
	for _, child := range node.Children {
		sub, shown := words.Sub[child.Name]
		if !shown {
			continue
		}
		refine(child, &sub)
		words.Sub[child.Name] = sub
		if child == node.DefaultCmd {
			maps.Copy(words.GlobalFlags, sub.GlobalFlags)
		}
	}
}

// predictProgram are the programs of PATH behind "--".
func predictProgram(a complete.Args) (names []string) {
	if a.LastCompleted != "--" {
		return nil
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		found, _ := filepath.Glob(filepath.Join(dir, "*")) // the pattern is right
		for _, path := range found {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				names = append(names, filepath.Base(path))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
