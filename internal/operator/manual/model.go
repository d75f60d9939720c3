package manual

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// command is a node of the command line, for completion.
type command struct {
	path     []string // below the program's own name
	help     string
	flags    []flag // its parents' included
	children []*command
	// runs reports whether the words after -- are a command line of their own.
	runs bool
	// words are the possible values of the first argument.
	words []string
}

// flag is a visible flag.
type flag struct {
	name  string
	short string // without dash; "" for none
	help  string
	takes bool // it takes a value
	words []string
	files bool
	dirs  bool
}

// modelOf is the command line of app without hidden commands and flags.
func modelOf(app *kong.Application) *command { return commandOf(app.Node, nil) }

func commandOf(n *kong.Node, path []string) *command {
	c := &command{path: path, help: firstSentence(n.Help)}
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			c.flags = append(c.flags, flagOf(f))
		}
	}
	for _, child := range visible(n.Children) {
		c.children = append(c.children, commandOf(child, append(slices.Clone(path), child.Name)))
	}
	if n.DefaultCmd != nil {
		c.flags = append(c.flags, commandOf(n.DefaultCmd, nil).flags...)
		c.flags = compact(c.flags)
	}
	if len(n.Positional) > 0 {
		c.words = wordsOf(n.Positional[0])
		c.runs = n.Positional[len(n.Positional)-1].Name == "CMD"
	}
	return c
}

func visible(nodes []*kong.Node) []*kong.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *kong.Node) bool { return n.Hidden })
}

// compact removes flags that were listed before.
func compact(flags []flag) []flag {
	var out []flag
	for _, f := range flags {
		if !slices.ContainsFunc(out, func(g flag) bool { return g.name == f.name }) {
			out = append(out, f)
		}
	}
	return out
}

func flagOf(f *kong.Flag) flag {
	out := flag{name: f.Name, help: firstSentence(f.Help), takes: !f.IsBool() && !f.IsCounter(), words: wordsOf(f.Value)}
	if f.Short != 0 {
		out.short = string(f.Short)
	}
	switch f.PlaceHolder {
	case "FILE", "PATH":
		out.files = true
	case "DIR":
		out.dirs = true
	}
	return out
}

// wordsOf are the possible values of a flag or argument; nil if it is free.
func wordsOf(v *kong.Value) []string {
	if v.Enum != "" {
		return v.EnumSlice()
	}
	return nil
}

// firstSentence shortens a help text to fit beside a completion: up to its first full
// stop, semicolon or parenthesis.
func firstSentence(help string) string {
	end := len(help)
	for _, stop := range []string{". ", "; ", " ("} {
		if at := strings.Index(help, stop); at >= 0 {
			end = min(end, at)
		}
	}
	return strings.TrimSuffix(help[:end], ".")
}

// walk calls f for c and all below it, parents first.
func (c *command) walk(f func(*command)) {
	f(c)
	for _, child := range c.children {
		child.walk(f)
	}
}

func (c *command) name() string { return strings.Join(c.path, " ") }
