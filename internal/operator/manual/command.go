// Package manual writes manual pages and the help of commands. It derives them from the tree of
// the commands, so that nothing has to be kept in step by hand.
package manual

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Command writes the manual page of a program, section 1, from the tree of its commands.
func Command(w io.Writer, root *cobra.Command, version string) error {
	name := root.Name()
	p := newPage(name, "1", name+" "+version, "User Commands")
	p.section("Name")
	p.text.WriteString(escapeInline(name) + ` \- ` + escape(strings.TrimSuffix(root.Short, ".")) + "\n")
	p.section("Synopsis")
	p.text.WriteString(fmt.Sprintf("\\fB%s\\fR \\fICOMMAND\\fR [\\fIFLAG\\fR]... [\\fIARGUMENT\\fR]...\n", escapeInline(name)))
	p.section("Commands")
	for _, child := range visible(root) {
		p.term(child.Name(), child.Short)
	}
	for _, child := range visible(root) {
		p.section(name + " " + child.Name())
		p.command(child)
	}
	p.section("Exit status")
	p.term("0", "It was done.")
	p.term("1", "It failed; one line on the standard error says why.")
	p.term("2", "The command line or the configuration is wrong.")
	p.paragraph("run and lock exit with the status of their command.")
	p.environment()
	p.files()
	p.section("See also")
	p.text.WriteString("\\fBsystemd.unit\\fR(5)\n")
	return p.writeTo(w)
}

// command writes the usage of a command and of its subcommands.
func (p *page) command(c *cobra.Command) {
	p.paragraph(c.Short)
	p.verbatim(c.UseLine())
	if c.Long != "" {
		for paragraph := range strings.SplitSeq(c.Long, "\n\n") {
			p.paragraph(paragraph)
		}
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			p.term(spelling(f), meaning(f))
		}
	})
	for _, child := range visible(c) {
		p.subsection(child.CommandPath())
		p.command(child)
	}
}

// spelling is how a flag is written: -q, --quiet, or --socket=PATH.
func spelling(f *pflag.Flag) string {
	text := "--" + f.Name
	if f.Shorthand != "" {
		text = "-" + f.Shorthand + ", " + text
	}
	if f.NoOptDefVal == "" {
		text += "=" + f.Value.Type()
	}
	return text
}

// meaning is the help of a flag, with its default.
func meaning(f *pflag.Flag) string {
	if f.DefValue == "" {
		return f.Usage
	}
	return strings.TrimSuffix(f.Usage, ".") + " (default " + f.DefValue + ")."
}

func (p *page) environment() {
	p.section("Environment")
	p.term("KAZAHANA_SOCKET", "The daemon's socket, for all subcommands that ask it.")
	p.term("KAZAHANA_...", "Every flag of serve and lease-server: --max-backward is KAZAHANA_MAX_BACKWARD.")
	p.term("RUNTIME_DIRECTORY, STATE_DIRECTORY, XDG_RUNTIME_DIR, XDG_STATE_HOME", "Default places of serve's socket, live directory and state.")
}

func (p *page) files() {
	p.section("Files")
	p.term("/etc/kazahana/kazahanad.yaml", "Configuration of the daemon: the flags of serve, with underscores. The packaged file explains each.")
	p.term("/etc/kazahana/lease-server.yaml", "Configuration of the lease server, likewise.")
	p.term("/run/kazahana/kazahanad.sock", "The daemon's socket.")
	p.term("/var/lib/kazahana", "The daemon's durable state, and the leases of the default provider.")
}

// visible are the subcommands that users see.
func visible(c *cobra.Command) (all []*cobra.Command) {
	for _, child := range c.Commands() {
		if child.IsAvailableCommand() {
			all = append(all, child)
		}
	}
	return all
}
