package manual

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Command writes the manual page of app, section 1. help is the help of a flag.
func Command(w io.Writer, app *kong.Application, version string, help kong.HelpValueFormatter) error {
	p := newPage(app.Name, "1", app.Name+" "+version, "User Commands")
	p.help = help
	p.section("Name")
	p.text.WriteString(escapeInline(app.Name) + ` \- ` + escape(lowered(app.Help)) + "\n")
	p.section("Synopsis")
	p.text.WriteString(fmt.Sprintf("\\fB%s\\fR \\fICOMMAND\\fR [\\fIFLAG\\fR]... [\\fIARGUMENT\\fR]...\n", escapeInline(app.Name)))
	p.section("Commands")
	for _, child := range visible(app.Children) {
		p.term(child.Name, child.Help)
	}
	for _, child := range visible(app.Children) {
		p.section(app.Name + " " + child.Name)
		p.command(app.Name, child)
	}
	p.section("Exit status")
	p.term("0", "It was done.")
	p.term("1", "It failed; one line on the standard error says why.")
	p.term("2", "The command line or the configuration is wrong.")
	p.paragraph("run and lock exit with the status of their command.")
	p.environment(app)
	p.files()
	p.section("See also")
	p.text.WriteString("\\fBkazahanad.yaml\\fR(5), \\fBlease\\-server.yaml\\fR(5), \\fBsystemd.unit\\fR(5)\n")
	return p.writeTo(w)
}

// command writes the usage of a subcommand and of its subcommands.
func (p *page) command(program string, n *kong.Node) {
	p.paragraph(n.Help)
	usage := program + " " + n.Path()
	if n.Parent != nil && n.Parent.Type == kong.ApplicationNode {
		usage = program + " " + n.Name
	}
	for _, arg := range n.Positional {
		usage += " " + arg.Summary()
	}
	if len(n.Children) == 0 || n.DefaultCmd != nil {
		p.verbatim(usage + " [flags]")
	}
	if n.Detail != "" {
		p.paragraph(n.Detail)
	}
	for _, arg := range n.Positional {
		p.term("<"+arg.Name+">", arg.Help)
	}
	for _, f := range n.Flags {
		if !f.Hidden && f.Name != "help" {
			p.term(f.String(), p.help(f.Value))
		}
	}
	for _, child := range visible(n.Children) {
		p.subsection(strings.TrimSpace(program + " " + n.Name + " " + child.Name))
		p.command(program, child)
	}
}

func (p *page) environment(app *kong.Application) {
	p.section("Environment")
	p.term("KAZAHANA_SOCKET", "The daemon's socket, for all subcommands that ask it.")
	p.term("KAZAHANA_...", "Every flag of serve and lease-server: --max-backward is KAZAHANA_MAX_BACKWARD.")
	p.term("RUNTIME_DIRECTORY, STATE_DIRECTORY, XDG_RUNTIME_DIR, XDG_STATE_HOME", "Default places of serve's socket, live directory and state.")
}

func (p *page) files() {
	p.section("Files")
	p.term("/etc/kazahana/kazahanad.yaml", "Configuration of the daemon.")
	p.term("/etc/kazahana/lease-server.yaml", "Configuration of the lease server.")
	p.term("/run/kazahana/kazahanad.sock", "The daemon's socket.")
	p.term("/var/lib/kazahana", "The daemon's durable state, and the leases of the default provider.")
}

func visible(nodes []*kong.Node) []*kong.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *kong.Node) bool { return n.Hidden })
}

// lowered formats a sentence for the NAME section of a manual page.
func lowered(sentence string) string { return strings.TrimSuffix(sentence, ".") }
