package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

type layoutCmd struct {
	layoutFlags
	Provider string `name:"provider" placeholder:"URL" help:"Take layout, epoch and machine IDs from a provider's URL, which is not opened."`
	Check    string `name:"check" placeholder:"FILE" help:"Compare with the IDs of another system: a file with a number a line, or - for standard input. Exit code 1 if new IDs would not sort above all of them."`
	At       string `name:"at" placeholder:"TIME" help:"When the first new ID will be made (default now)."`
}

// Help is the text below the usage line.
func (*layoutCmd) Help() string {
	return "Shows what a layout holds and how long it lasts; with --check, whether its IDs sort above those of another system."
}

// Run prints the layout's capacity, and how a sample of old IDs compares.
func (c *layoutCmd) Run(s *system) error {
	terms, err := c.terms()
	if err != nil {
		return err
	}
	now := s.now()
	if c.At != "" {
		if now, _, err = parseTime(c.At); err != nil {
			return err
		}
	}
	if !terms.Timeline.Contains(now.UnixMilli()) {
		return usageError{fmt.Errorf("%s is outside the layout's time, which is from %s to %s", snowflake.FormatMS(now.UnixMilli()),
			snowflake.FormatMS(terms.Timeline.EpochMS), snowflake.FormatMS(terms.Timeline.EndMS()))}
	}
	w := table(s.out)
	showLayout(w, terms, now.UnixMilli())
	if c.Check == "" {
		return w.Flush()
	}
	old, err := c.sample(terms)
	if err != nil {
		return err
	}
	verdict := compare(w, old, terms, now.UnixMilli())
	return errors.Join(w.Flush(), verdict)
}

// terms are those of the provider's URL or of the flags.
func (c *layoutCmd) terms() (provider.Terms, error) {
	if c.Provider == "" {
		layout, err := c.layout()
		terms := provider.DefaultTerms()
		terms.Timeline, terms.BitID, terms.BitSeq = c.timeline(layout), layout.BitID, layout.BitSeq
		return terms, err
	}
	if c.BitTS != nil || c.BitSeq != nil || c.Layout != snowflake.NameDefault {
		return provider.Terms{}, usageError{errors.New("--provider has the layout: leave out --layout, --bit-ts and --bit-seq")}
	}
	if strings.HasPrefix(c.Provider, "http") {
		return provider.Terms{}, usageError{errors.New("a lease server keeps its layout to itself: give --layout, --bit-ts, --bit-seq and --epoch, or its own provider's URL")}
	}
	terms, err := backend.Terms(c.Provider)
	if err != nil {
		return terms, usageError{err}
	}
	return terms, nil
}

func showLayout(w io.Writer, t provider.Terms, nowMS int64) {
	ids, tl := t.Range(), t.Timeline
	fmt.Fprintf(w, "layout\t%v (bit_ts/bit_id/bit_seq)\n", t.Layout())
	fmt.Fprintf(w, "time\tfrom %s to %s\n", snowflake.FormatMS(tl.EpochMS), snowflake.FormatMS(tl.EndMS()))
	fmt.Fprintf(w, "below 2^53\tuntil %s\n", snowflake.FormatMS(tl.SafeEndMS()))
	fmt.Fprintf(w, "machine IDs\t%d (%v)\n", ids.Count(), ids)
	fmt.Fprintf(w, "IDs per ms\t%d of each machine ID\n", t.Layout().Throughput())
	fmt.Fprintf(w, "first new ID\t%d or greater, from %s\n", int64(tl.ID(nowMS, 0)), snowflake.FormatMS(nowMS))
}

// sample reads the IDs of another system.
func (c *layoutCmd) sample(t provider.Terms) (*snowflake.Before, error) {
	file := os.Stdin
	if c.Check != "-" {
		opened, err := os.Open(c.Check)
		if err != nil {
			return nil, fmt.Errorf("--check: %w", err)
		}
		defer opened.Close()
		file = opened
	}
	old := &snowflake.Before{}
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		text := strings.Trim(lines.Text(), " \t\r,\"'")
		if text == "" {
			continue
		}
		id, err := snowflake.ParseID(text, snowflake.Codec{})
		if external := len(text) == snowflake.ExternalLen && strings.Trim(text, "0123456789") != ""; external || err != nil {
			return nil, fmt.Errorf("--check: line %d of %s is no number of at most 63 bits", n, c.Check)
		}
		old.Add(id, t.Timeline, t.Layout())
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("--check: %w", err)
	}
	if old.Count == 0 {
		return nil, fmt.Errorf("--check: %s has no IDs", c.Check)
	}
	return old, nil
}

// compare shows how the sample stands to new IDs. The error says that new IDs
// would not sort above it.
func compare(w io.Writer, old *snowflake.Before, t provider.Terms, nowMS int64) error {
	tl, ids := t.Timeline, t.Range()
	fmt.Fprintf(w, "old IDs\t%d, from %d to %d\n", old.Count, int64(old.Smallest), int64(old.Largest))
	fmt.Fprintf(w, "read as new IDs\tof %s to %s, %d with the fallback bit\n",
		snowflake.FormatMS(tl.UnixMS(old.Smallest)), snowflake.FormatMS(tl.UnixMS(old.Largest)), old.Fallbacks)
	if first, last, ok := old.FreeRange(ids.Low, ids.End); ok {
		fmt.Fprintf(w, "unused by them\tmachine IDs %d-%d\n", first, last)
	} else {
		fmt.Fprintf(w, "unused by them\tno machine ID of %v\n", ids)
	}
	if old.SortsBelow(tl, nowMS) {
		ahead := time.Duration(nowMS-old.PassedAtMS(tl)) * time.Millisecond
		fmt.Fprintf(w, "result\tok: new IDs sort above all old ones, by %s of this layout's time\n", days(ahead))
		return nil
	}
	fmt.Fprintf(w, "result\tnew IDs do not sort above the old ones\n")
	epoch := time.UnixMilli(old.LatestEpochMS(tl, nowMS)).UTC().Truncate(24 * time.Hour)
	end := snowflake.Timeline{EpochMS: epoch.UnixMilli(), BitTS: tl.BitTS}.EndMS()
	if end <= nowMS {
		return fmt.Errorf("no epoch makes IDs of %v greater than %d: use fewer bits of time", t.Layout(), int64(old.Largest))
	}
	return fmt.Errorf("new IDs would not sort above %d before %s; an epoch of %s or earlier makes them greater at once, and lasts until %s",
		int64(old.Largest), snowflake.FormatMS(old.PassedAtMS(tl)), epoch.Format(time.RFC3339), snowflake.FormatMS(end))
}

// days writes a long time in whole days, a short one as it is.
func days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.String()
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}
