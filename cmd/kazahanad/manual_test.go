package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// The page has every command and every flag that is shown, with its help.
func TestManualOfTheCommand(t *testing.T) {
	t.Parallel()
	page := newSite(t).Kazahanad("manual").OK(t)
	text := plain(page)
	commands, flags := 0, 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden {
			if strings.Contains(text, c.CommandPath()+"\n") {
				t.Errorf("%s is hidden, and on the page", c.Name())
			}
			return
		}
		commands++
		if !strings.Contains(text, c.Name()) || !strings.Contains(text, strings.TrimSuffix(c.Short, ".")) {
			t.Errorf("%q is not on the page, or without its help %q", c.CommandPath(), c.Short)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			flags++
			if !strings.Contains(text, "--"+f.Name) || !strings.Contains(text, strings.TrimSuffix(f.Usage, ".")) {
				t.Errorf("--%s is not on the page, or without its help %q", f.Name, f.Usage)
			}
		})
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	visit((&system{}).commandLine())
	if commands < 15 || flags < 60 {
		t.Errorf("%d commands and %d flags were looked for", commands, flags)
	}
	lint(t, page)
}

// plain undoes the page's escapes.
func plain(page string) string {
	return strings.NewReplacer(`\-`, "-", `\(aq`, "'", `\e`, `\`, "\\`", "`", `\(ha`, "^", `\(ti`, "~", `\(dq`, `"`, `\&`, "").Replace(page)
}

// lint has groff typeset the page, with every warning.
func lint(t *testing.T, page string) {
	t.Helper()
	groff := ring.Program(t, "groff")
	cmd := exec.Command(groff, "-man", "-ww", "-Tascii", "-z")
	cmd.Stdin = strings.NewReader(page)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%s", err, out)
	}
}
