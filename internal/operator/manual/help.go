package manual

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kazahana/kazahana/internal/operator/config"
)

// Help writes the purpose of a command, its subcommands, and its flags by their headings.
func Help(w io.Writer, c *cobra.Command, width int) {
	_, after, _ := strings.Cut(c.Use, " ")
	fmt.Fprintln(w, strings.TrimSpace("Usage: "+c.CommandPath()+" [flags] "+after))
	for paragraph := range strings.SplitSeq(strings.TrimSpace(c.Short+"\n\n"+c.Long), "\n\n") {
		fmt.Fprintf(w, "\n%s\n", wrap(paragraph, "", width))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintln(w, "\nCommands:")
		showCommands(w, c, "", width)
	}
	var headings []string
	grouped := map[string]*pflag.FlagSet{}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		heading := "Flags"
		if group := f.Annotations[config.GroupOf]; len(group) > 0 {
			heading = cmp.Or(group[0], heading)
		}
		if grouped[heading] == nil {
			headings = append(headings, heading)
			grouped[heading] = pflag.NewFlagSet("", pflag.ContinueOnError)
			grouped[heading].SortFlags = false
		}
		grouped[heading].AddFlag(f)
	})
	for _, heading := range headings {
		fmt.Fprintf(w, "\n%s:\n%s", heading, grouped[heading].FlagUsagesWrapped(width))
	}
}

// showCommands writes the commands below c, each with its path from the first one.
func showCommands(w io.Writer, c *cobra.Command, path string, width int) {
	const column = 23
	for _, child := range visible(c) {
		name := path + child.Name()
		fmt.Fprintf(w, "  %-*s%s\n", column-2, name, strings.TrimLeft(wrap(child.Short, strings.Repeat(" ", column), width), " "))
		showCommands(w, child, name+" ", width)
	}
}

// wrap breaks a text into lines, each with the indent.
func wrap(text, indent string, width int) string {
	var lines []string
	line := indent
	for word := range strings.FieldsSeq(text) {
		if line != indent && len(line)+1+len(word) > width {
			lines, line = append(lines, line), indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n")
}
