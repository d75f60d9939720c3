package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kazahana/kazahana/internal/testkit/must"
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

// The page of a configuration has all of its keys, with what the sample says.
func TestManualOfTheConfigurations(t *testing.T) {
	t.Parallel()
	key := regexp.MustCompile(`(?m)^#?([a-z][a-z0-9_]*):`)
	for _, name := range []string{"kazahanad.yaml", "lease-server.yaml"} {
		path := filepath.Join("..", "..", "packaging", name)
		page := newSite(t).Kazahanad("manual", path).OK(t)
		sample, err := os.ReadFile(path)
		must.Succeed(t, err)
		text := plain(page)
		keys := key.FindAllStringSubmatch(string(sample), -1)
		var terms []string
		for _, m := range regexp.MustCompile(`(?m)^\.TP\n\\fB(.*)\\fR$`).FindAllStringSubmatch(page, -1) {
			terms = append(terms, strings.Split(m[1], ", ")...)
		}
		for _, m := range keys {
			if !slices.Contains(terms, m[1]) {
				t.Errorf("%s: %s is not on the page", name, m[1])
			}
		}
		if len(keys) < 15 {
			t.Errorf("%s: only %d keys found", name, len(keys))
		}
		for line := range strings.Lines(string(sample)) {
			line = strings.TrimSpace(strings.TrimPrefix(line, "#"))
			if !strings.HasPrefix(line, "---- ") && !strings.HasPrefix(line, "Configuration of") && !strings.Contains(text, line) {
				t.Errorf("%s: the page lacks the line %q", name, line)
			}
		}
		lint(t, page)
	}
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
