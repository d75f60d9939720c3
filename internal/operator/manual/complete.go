package manual

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// generators write the completion script of each shell.
var generators = map[string]func(w io.Writer, program string, root *command) error{
	"bash": bash, "zsh": zsh, "fish": fish,
}

// Shells lists the shells that Completion supports.
func Shells() []string { return slices.Sorted(maps.Keys(generators)) }

// Completion writes the script with which a shell, one of Shells, completes the
// command line of app.
func Completion(w io.Writer, shell string, app *kong.Application) error {
	generate, ok := generators[shell]
	if !ok {
		return fmt.Errorf("%q is not one of %s", shell, strings.Join(Shells(), ", "))
	}
	return generate(w, app.Name, modelOf(app))
}

// quoted puts a word in single quotes, for all three shells.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// names are the children's names.
func (c *command) names() []string {
	var out []string
	for _, child := range c.children {
		out = append(out, child.path[len(child.path)-1])
	}
	return out
}

// spellings are the ways to type the wanted flags.
func (c *command) spellings(wanted func(flag) bool) []string {
	var out []string
	for _, f := range c.flags {
		if !wanted(f) {
			continue
		}
		if f.short != "" {
			out = append(out, "-"+f.short)
		}
		out = append(out, "--"+f.name)
	}
	return out
}
