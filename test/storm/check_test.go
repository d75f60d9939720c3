package storm

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
)

// A record of an asker's file is an answered call, in words of 64 bits, little
// endian: whether the ID was fetched ahead, the caller and the number of IDs; when
// the call began and when it ended, on the machine's monotonic clock; the IDs,
// none for a call that failed.
const (
	prefetched = 1 << 63
	callerMask = 1<<63 - 1<<32
	countMask  = 1<<32 - 1
	headWords  = 3
)

// call is one record without its IDs, of which it keeps the ends.
type call struct{ sent, received, first, last uint64 }

// row is a process of the table.
type row struct {
	asker
	ids, calls, errors int
	longest            time.Duration
}

// totals is what all processes received.
type totals struct {
	rows   []row
	ids    []uint64
	calls  []call // but for IDs fetched ahead, which may be older than the call
	errors int
}

// add reads the files of a process, and checks that its callers' IDs ascend.
func (total *totals) add(t *testing.T, p *process) {
	t.Helper()
	r := row{asker: p.asker}
	files := p.written()
	if len(files) != p.files {
		t.Errorf("%v wrote %d files, want %d", p, len(files), p.files)
	}
	for file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(content) == 0 || len(content)%8 != 0 {
			t.Fatalf("%v wrote %d bytes", p, len(content))
		}
		words := make([]uint64, len(content)/8)
		for i := range words {
			words[i] = binary.LittleEndian.Uint64(content[8*i:])
		}
		if fault := total.read(&r, words); fault != "" {
			t.Errorf("%v: %s", p, fault)
		}
	}
	total.rows = append(total.rows, r)
	total.errors += r.errors
}

// read takes in the records of one file, and names their faults.
func (total *totals) read(r *row, words []uint64) (fault string) {
	last := map[uint64]uint64{} // by caller
	for len(words) > 0 {
		if len(words) < headWords || uint64(len(words)-headWords) < words[0]&countMask {
			return "the last record is not whole"
		}
		caller, ids := words[0]&callerMask, words[headWords:][:words[0]&countMask]
		r.calls++
		r.ids += len(ids)
		r.longest = max(r.longest, time.Duration(words[2]-words[1]))
		if len(ids) == 0 {
			r.errors++
		}
		for _, id := range ids {
			if id <= last[caller] && fault == "" {
				fault = fmt.Sprintf("caller %d got %d after %d", caller>>32, id, last[caller])
			}
			last[caller] = id
		}
		total.ids = append(total.ids, ids...)
		if len(ids) > 0 && words[0]&prefetched == 0 {
			total.calls = append(total.calls, call{words[1], words[2], ids[0], ids[len(ids)-1]})
		}
		words = words[headWords+len(ids):]
	}
	return fault
}

// disorder compares calls of different processes: a call that began after another had ended gets
// greater IDs.
func disorder(calls []call) string {
	bySending := slices.SortedFunc(slices.Values(calls), func(a, b call) int { return cmp.Compare(a.sent, b.sent) })
	byArrival := slices.SortedFunc(slices.Values(calls), func(a, b call) int { return cmp.Compare(a.received, b.received) })
	greatest := call{}
	for _, c := range bySending {
		for byArrival[0].received < c.sent {
			if byArrival[0].last > greatest.last {
				greatest = byArrival[0]
			}
			byArrival = byArrival[1:]
		}
		if c.first <= greatest.last {
			return fmt.Sprintf("%+v began %v after %+v had ended, and is not greater", c, time.Duration(c.sent-greatest.received), greatest)
		}
	}
	return ""
}

func (total *totals) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "language\tasks by\tIDs\tcalls\terrors\tlongest pause\t")
	for _, r := range total.rows {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%v\t\n", r.language, r.kind, r.ids, r.calls, r.errors, r.longest.Round(time.Millisecond))
	}
	_ = w.Flush()
	return b.String()
}

// The checker finds the faults it is there for.
func TestChecker(t *testing.T) {
	record := func(head, sent, received uint64, ids ...uint64) []uint64 {
		return append([]uint64{head | uint64(len(ids)), sent, received}, ids...)
	}
	for name, c := range map[string]struct {
		records            [][]uint64
		fault, order       bool
		errors, duplicates int
	}{
		"nothing wrong":               {[][]uint64{record(0, 1, 2, 5, 6), record(0, 3, 4, 7)}, false, false, 0, 0},
		"another caller's are less":   {[][]uint64{record(0, 1, 9, 5, 6), record(1<<32, 2, 8, 4)}, false, false, 0, 0},
		"a caller's do not ascend":    {[][]uint64{record(0, 1, 9, 5), record(0, 2, 8, 4)}, true, false, 0, 0},
		"nor in a call":               {[][]uint64{record(0, 1, 9, 5, 4)}, true, false, 0, 0},
		"twice":                       {[][]uint64{record(0, 1, 9, 5), record(1<<32, 2, 8, 5)}, false, false, 0, 1},
		"later and less":              {[][]uint64{record(0, 1, 2, 5), record(1<<32, 3, 4, 4)}, false, true, 0, 0},
		"later and less, but fetched": {[][]uint64{record(0, 1, 2, 5), record(prefetched|1<<32, 3, 4, 4)}, false, false, 0, 0},
		"an error":                    {[][]uint64{record(0, 1, 2, 5), record(0, 3, 4)}, false, false, 1, 0},
		"not whole":                   {[][]uint64{{1, 1, 2}}, true, false, 0, 0},
	} {
		var total totals
		var r row
		fault := total.read(&r, slices.Concat(c.records...))
		order := disorder(total.calls)
		n, _ := testkit.Duplicates(total.ids)
		if (fault != "") != c.fault || (order != "") != c.order || r.errors != c.errors || n != c.duplicates {
			t.Errorf("%s: %q, %q, %d errors, %d twice", name, fault, order, r.errors, n)
		}
	}
}
