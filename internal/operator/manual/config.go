package manual

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	heading = regexp.MustCompile(`^# ---- (.*?) -*$`)
	// setting matches a line of the sample that sets a key, also in a comment.
	setting = regexp.MustCompile(`^#?([a-z][a-z0-9_]*):`)
	prose   = regexp.MustCompile(`^# ?(.*)$`)
)

// Config writes the manual page of the configuration file, section 5, from its
// commented sample.
func Config(w io.Writer, file string, sample []byte, version string) error {
	name := filepath.Base(file)
	p := newPage(name, "5", "kazahanad "+version, "File Formats")
	paragraphs := bytes.Split(bytes.TrimSpace(sample), []byte("\n\n"))
	for i, raw := range paragraphs {
		text, settings := split(string(bytes.TrimSpace(raw)))
		if i == 0 && len(text) > 0 {
			p.section("Name")
			fmt.Fprintf(&p.text, "%s \\- %s\n", escapeInline(name), escape(lowered(text[0])))
			p.section("Description")
			text = text[1:]
		}
		if m := heading.FindStringSubmatch(strings.TrimSpace(string(raw))); m != nil {
			p.section(m[1])
			continue
		}
		if len(settings) == 0 {
			for _, one := range blocks(text) {
				p.paragraph(one)
			}
			continue
		}
		p.setting(text, settings)
	}
	p.section("Files")
	p.term("/etc/kazahana/"+name, "Read if no other file is named.")
	p.section("See also")
	p.text.WriteString("\\fBkazahanad\\fR(1)\n")
	return p.writeTo(w)
}

// split separates the comment lines of a paragraph from the lines that set keys.
func split(paragraph string) (text, settings []string) {
	for line := range strings.SplitSeq(paragraph, "\n") {
		switch m := prose.FindStringSubmatch(line); {
		case len(settings) == 0 && m != nil && !setting.MatchString(line):
			text = append(text, m[1])
		default:
			settings = append(settings, strings.TrimPrefix(line, "#"))
		}
	}
	return text, settings
}

// blocks joins lines to paragraphs, separated by empty lines.
func blocks(lines []string) []string {
	return strings.Split(strings.TrimSpace(strings.Join(lines, "\n")), "\n\n")
}

func (p *page) setting(text, settings []string) {
	var names []string
	for _, line := range settings {
		if m := setting.FindStringSubmatch(line); m != nil {
			names = append(names, m[1])
		}
	}
	p.term(strings.Join(names, ", "), strings.Join(text, "\n"))
	fmt.Fprintf(&p.text, ".IP\n.nf\n%s\n.fi\n", escape(strings.Join(settings, "\n")))
}
