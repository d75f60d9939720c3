package provider

import (
	"slices"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// Machine IDs are counted once, under any layouts of the records that cover them.
func TestUsage(t *testing.T) {
	const now = snowflake.DefaultEpochMS + 1_000_000
	terms := DefaultTerms()
	lasts := terms.Term.Milliseconds()
	record := func(id int64, bitSeq int) Record {
		l := terms.WithBitSeq(bitSeq).Grant(id, now, "")
		return Record{Lease: l, End: l.ReservedUntil}
	}
	givenBack := record(7, 8)
	givenBack.Released, givenBack.End = true, now+5000
	for name, test := range map[string]struct {
		records    []Record
		ids        IDRange
		atMS       int64
		held, free int64
	}{
		"none":                       {nil, IDRange{}, now, 0, 8192},
		"same layout":                {[]Record{record(1, 8), record(5, 8)}, IDRange{}, now, 2, 8190},
		"a coarse covers two":        {[]Record{record(2, 9)}, IDRange{}, now, 2, 8190},
		"and what is in it":          {[]Record{record(4, 8), record(2, 9), record(5, 8)}, IDRange{}, now, 2, 8190},
		"two fine in one":            {[]Record{record(8, 7), record(9, 7)}, IDRange{}, now, 1, 8191},
		"outside the range":          {[]Record{record(1, 8), record(9, 8)}, IDRange{Low: 2, End: 9}, now, 0, 7},
		"at the range's border":      {[]Record{record(1, 9)}, IDRange{Low: 3, End: 9}, now, 1, 5},
		"before its start":           {[]Record{record(1, 8)}, IDRange{}, now - 1, 0, 8191},
		"after its end":              {[]Record{record(1, 8)}, IDRange{}, now + lasts, 0, 8191},
		"after its quarantine":       {[]Record{record(1, 8)}, IDRange{}, now + 2*lasts, 0, 8192},
		"given back as of later":     {[]Record{givenBack}, IDRange{}, now, 0, 8191},
		"given back as of then":      {[]Record{givenBack}, IDRange{}, now + 5000, 0, 8192},
		"one held beside given back": {[]Record{record(6, 8), givenBack}, IDRange{}, now, 1, 8190},
	} {
		on := terms
		on.IDs = test.ids
		slices.SortFunc(test.records, CompareRecords)
		u := UsageOf(test.records, &on, test.atMS)
		if u.Held != test.held || u.Free != test.free || u.Quarantined() != on.Range().Count()-test.held-test.free {
			t.Errorf("%s: %+v, want %d held and %d free", name, u, test.held, test.free)
		}
	}
	u := UsageOf([]Record{record(1, 8), record(9, 10), givenBack}, nil, now+1000)
	if u.Held != 2 || u.Free != 0 || u.Quarantined() != 1 || u.TTLMin != 599 || u.TTLMax != 599 {
		t.Errorf("without terms: %+v", u)
	}
}

func TestFullness(t *testing.T) {
	for free, want := range map[int64]Fullness{0: Full, 1: AlmostFull, 19: AlmostFull, 20: NearlyFull, 99: NearlyFull, 100: Roomy, 1000: Roomy} {
		if got := (Usage{Free: free, Total: 1000}).Fullness(); got != want {
			t.Errorf("%d of 1000 free is %s, want %s", free, got, want)
		}
	}
	if !Full.WorseThan(AlmostFull) || !NearlyFull.WorseThan("") || Roomy.WorseThan("") || NearlyFull.WorseThan(NearlyFull) {
		t.Error("the levels are in another order")
	}
}
