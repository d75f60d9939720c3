package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/placement"
)

type placementCmd struct {
	Actor string `arg:"ACTOR" optional:"" help:"KIND/ID of one actor: where it belongs, and what is stored about it. Nothing is activated."`
	clientFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// activationsPage is the daemon's largest page.
const activationsPage = 1000

// Run shows the members, the kinds and the activations, or one actor.
func (c *placementCmd) Run(s *system) error {
	query := map[string]any{}
	if c.Actor != "" {
		key, err := placement.ParseKey(c.Actor)
		if err != nil {
			return usageError{err}
		}
		query["kind"], query["identity"] = key.Kind, key.Identity
	}
	client := c.client(c.Timeout)
	defer client.Close()
	query["limit"] = activationsPage
	read := func() (page daemon.SnapshotPage, err error) {
		err = client.Call(s.ctx, "Placement.Snapshot", &page, query)
		return page, err
	}
	report, err := read()
	for page := report; err == nil && len(page.Activations) == activationsPage; {
		last := page.Activations[activationsPage-1]
		query["after"] = last.Kind + "/" + last.Identity
		page, err = read()
		report.Activations = append(report.Activations, page.Activations...)
	}
	switch {
	case err != nil:
		return refusedUsage(err)
	case c.JSON:
		return printJSON(s.out, report)
	case report.Key != nil:
		return showActor(s.out, c.Actor, report)
	}
	return showPlacement(s.out, report)
}

func showPlacement(out io.Writer, p daemon.SnapshotPage) error {
	w := table(out)
	fmt.Fprintf(w, "state\t%s\n", p.State)
	fmt.Fprintf(w, "authority\t%s\n", cmp.Or(p.Authority, "none: actors do not live on this host"))
	for i, m := range p.Members {
		name := ""
		if i == 0 {
			name = "members"
		}
		fmt.Fprintf(w, "%s\t%s, token %d, serves %s\n", name, printable(m.Authority), m.Token, cmp.Or(printableList(m.Kinds), "nothing"))
	}
	if len(p.Members) == 0 {
		fmt.Fprintf(w, "members\tnone are known\n")
	}
	fmt.Fprintf(w, "kinds\t%s\n", cmp.Or(printableList(p.Kinds), "none: no process on this host has registered"))
	fmt.Fprintf(w, "activations\t%d on this host\n", p.Total)
	if err := w.Flush(); err != nil || len(p.Activations) == 0 {
		return err
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "ACTOR\tPROCESS\tVERSION\tTOKEN\tRESOLVED\tDOING")
	for _, a := range p.Activations {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%v ago\t%s\n", printable(a.Kind+"/"+a.Identity), printable(a.PID), a.Version, a.Token, seconds(a.IdleMS), a.Doing)
	}
	return w.Flush()
}

func printableList(names []string) string {
	var shown []string
	for _, name := range names {
		shown = append(shown, printable(name))
	}
	return strings.Join(shown, ", ")
}

func showActor(out io.Writer, actor string, p daemon.SnapshotPage) error {
	w := table(out)
	fmt.Fprintf(w, "actor\t%s\n", printable(actor))
	authority := "none: no process of any member has registered for the kind"
	switch {
	case len(p.Members) == 0:
		authority = "none: there are no members"
	case p.Key.Authority != "" && p.Key.Locality == "local":
		authority = printable(p.Key.Authority) + ", this host"
	case p.Key.Authority != "":
		authority = printable(p.Key.Authority) + ", another host"
	}
	fmt.Fprintf(w, "authority\t%s\n", authority)
	activation := "none on this host"
	if len(p.Activations) > 0 {
		a := p.Activations[0]
		activation = fmt.Sprintf("%s, %s, resolved %v ago", describeActivation(a.PID, a.Version, a.Token), a.Doing, seconds(a.IdleMS))
	}
	fmt.Fprintf(w, "activation\t%s\n", activation)
	record := "none: it was never activated"
	switch r := p.Key.Record; {
	case r != nil && r.Owner == "":
		record = fmt.Sprintf("nobody's; the last was version %d, token %d", r.Version, r.Token)
	case r != nil:
		record = printable(r.Owner) + ": " + describeActivation(r.PID, r.Version, r.Token)
	}
	fmt.Fprintf(w, "record\t%s\n", record)
	return w.Flush()
}

func describeActivation(pid string, version, token int64) string {
	return fmt.Sprintf("process %s, version %d, token %d", printable(pid), version, token)
}
