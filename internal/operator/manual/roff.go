package manual

import (
	"fmt"
	"io"
	"strings"
)

// page collects a manual page in the man macros, which every man program knows.
type page struct{ text strings.Builder }

func newPage(name, section, source, title string) *page {
	p := &page{}
	fmt.Fprintf(&p.text, ".TH %s %s \"\" %s %s\n.nh\n.ad l\n", macroArgument(strings.ToUpper(name)), section, macroArgument(source), macroArgument(title))
	return p
}

func (p *page) section(title string)    { fmt.Fprintf(&p.text, ".SH %s\n", macroArgument(title)) }
func (p *page) subsection(title string) { fmt.Fprintf(&p.text, ".SS %s\n", macroArgument(title)) }
func (p *page) paragraph(text string)   { fmt.Fprintf(&p.text, ".PP\n%s\n", escape(text)) }

// term writes a word and its meaning.
func (p *page) term(term, meaning string) {
	fmt.Fprintf(&p.text, ".TP\n\\fB%s\\fR\n%s\n", escapeInline(term), escape(meaning))
}

// verbatim writes text with its line breaks.
func (p *page) verbatim(text string) {
	fmt.Fprintf(&p.text, ".PP\n.RS 4\n.nf\n%s\n.fi\n.RE\n", escape(strings.TrimRight(text, "\n")))
}

func (p *page) writeTo(w io.Writer) error {
	_, err := io.WriteString(w, p.text.String())
	return err
}

// escape escapes plain text for roff. Dashes become ASCII ones, so that readers can
// copy flags and dates.
func escape(text string) string {
	lines := strings.Split(escapeInline(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

var inline = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", "\\`", "^", `\(ha`, "~", `\(ti`)

func escapeInline(text string) string { return inline.Replace(text) }

// macroArgument quotes text as one argument of a macro.
func macroArgument(text string) string {
	return `"` + strings.ReplaceAll(escapeInline(text), `"`, `\(dq`) + `"`
}
