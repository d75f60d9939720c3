package provider

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// TermsParams returns the names of the URL parameters that ParseTerms knows.
func TermsParams() []string {
	return []string{"term", "quarantine", "epoch", "bit_id", "bit_seq", "bit_ts", "layout", "pool", "ids"}
}

// ParseTerms reads Terms from URL parameters; a missing one has its default. A bit width
// that is not given follows from the other two, so that bit_seq=9 alone means 41/13/9;
// layout names all three; quarantine follows term.
func ParseTerms(q url.Values) (Terms, error) {
	t := DefaultTerms()
	if v, ok := given(q, "pool"); ok {
		t.Pool = v
	}
	if err := parseDuration(q, "term", &t.Term); err != nil {
		return Terms{}, err
	}
	t.Quarantine = t.Term
	if err := parseDuration(q, "quarantine", &t.Quarantine); err != nil {
		return Terms{}, err
	}
	if v, ok := given(q, "epoch"); ok {
		ms, err := parseEpoch(v)
		if err != nil {
			return Terms{}, err
		}
		t.Timeline.EpochMS = ms
	}
	if err := t.parseLayout(q); err != nil {
		return Terms{}, err
	}
	if v, ok := given(q, "ids"); ok {
		r, err := parseIDRange(v)
		if err != nil {
			return Terms{}, err
		}
		t.IDs = r
	}
	return t, t.Validate()
}

func (t *Terms) parseLayout(q url.Values) error {
	if name, ok := given(q, "layout"); ok {
		layout, err := snowflake.NamedLayout(name)
		if err != nil {
			return fmt.Errorf("layout=%s: %w", name, err)
		}
		for _, width := range []string{"bit_ts", "bit_id", "bit_seq"} {
			if _, both := given(q, width); both {
				return fmt.Errorf("layout=%s and %s: give one of them, a layout has all widths", name, width)
			}
		}
		t.Timeline.BitTS, t.BitID, t.BitSeq = layout.BitTS, layout.BitID, layout.BitSeq
		return nil
	}
	if err := parseInt(q, "bit_ts", &t.Timeline.BitTS); err != nil {
		return err
	}
	if err := parseInt(q, "bit_seq", &t.BitSeq); err != nil {
		return err
	}
	t.BitID = snowflake.ValueBits - t.Timeline.BitTS - t.BitSeq
	if err := parseInt(q, "bit_id", &t.BitID); err != nil {
		return err
	}
	if _, ok := given(q, "bit_seq"); !ok {
		t.BitSeq = snowflake.ValueBits - t.Timeline.BitTS - t.BitID
	}
	return nil
}

// parseIDRange reads LOW-HIGH, both included.
func parseIDRange(s string) (IDRange, error) {
	low, high, ok := strings.Cut(s, "-")
	l, lowErr := strconv.ParseInt(low, 10, 62)
	h, highErr := strconv.ParseInt(high, 10, 62)
	if !ok || lowErr != nil || highErr != nil || l > h {
		return IDRange{}, fmt.Errorf("ids=%s: write the lowest and the highest machine ID, for example ids=0-999", s)
	}
	return IDRange{Low: l, End: h + 1}, nil
}

// given looks up a parameter; an empty one counts too, so that the parser of the value reports
// it.
func given(q url.Values, name string) (string, bool) {
	v, ok := q[name]
	if !ok || len(v) == 0 {
		return "", false
	}
	return v[0], true
}

func parseDuration(q url.Values, name string, d *time.Duration) error {
	v, ok := given(q, name)
	if !ok {
		return nil
	}
	parsed, err := time.ParseDuration(v)
	if err != nil {
		return fmt.Errorf("%s=%s: write a duration with its unit, for example %s=10m", name, v, name)
	}
	*d = parsed
	return nil
}

func parseInt(q url.Values, name string, n *int) error {
	v, ok := given(q, name)
	if !ok {
		return nil
	}
	parsed, err := strconv.Atoi(v)
	if err != nil {
		return fmt.Errorf("%s=%s: write a whole number", name, v)
	}
	*n = parsed
	return nil
}

func parseEpoch(v string) (int64, error) {
	if ms, err := strconv.ParseInt(v, 10, 64); err == nil {
		return ms, nil
	}
	// A '+' in a query is a space, and people do not write %2B09:00.
	at, err := time.Parse(time.RFC3339Nano, strings.ReplaceAll(v, " ", "+"))
	if err != nil || at.Nanosecond()%int(time.Millisecond) != 0 {
		return 0, fmt.Errorf("epoch=%s: write a time in whole milliseconds as RFC 3339 (2026-01-01T00:00:00Z) or as Unix milliseconds", v)
	}
	return at.UnixMilli(), nil
}
