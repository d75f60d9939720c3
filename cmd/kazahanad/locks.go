package main

import (
	"fmt"
	"io"

	"github.com/kazahana/kazahana/internal/lock"
)

type locksCmd struct {
	clientFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// lockPage is a page of Lock.List.
type lockPage struct {
	Locks []lock.Answer `json:"locks"`
}

// Run lists the locks that are held now.
func (c *locksCmd) Run(s *system) error {
	client := c.client(c.Timeout)
	defer client.Close()
	all, after := lockPage{Locks: []lock.Answer{}}, ""
	for {
		var page lockPage
		if err := client.Call(s.ctx, "Lock.List", &page, map[string]any{"after": after, "limit": lock.MaxList}); err != nil {
			return refusedUsage(err)
		}
		all.Locks = append(all.Locks, page.Locks...)
		if len(page.Locks) < lock.MaxList {
			break
		}
		after = page.Locks[len(page.Locks)-1].LockKey
	}
	if c.JSON {
		return printJSON(s.out, all)
	}
	return showLocks(s.out, all.Locks)
}

func showLocks(out io.Writer, locks []lock.Answer) error {
	if len(locks) == 0 {
		_, err := fmt.Fprintln(out, "no lock is held")
		return err
	}
	w := table(out)
	fmt.Fprintln(w, "KEY\tOWNER\tTOKEN\tACQUIRED\tENDS IN")
	for _, l := range locks {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%v\n", printable(l.LockKey), printable(l.OwnerID), l.FencingToken, l.AcquiredAt, seconds(l.ExpiresInMS))
	}
	return w.Flush()
}
