package backend

import (
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"strings"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/provider"
)

// Terms is what the provider URL grants to services that have no terms of their
// own.
func Terms(rawURL string) (provider.Terms, error) {
	_, query, _ := strings.Cut(rawURL, "?")
	own, err := connurl.Some(query, provider.TermsParams())
	if err != nil {
		return provider.Terms{}, err
	}
	return provider.ParseTerms(own)
}

// Override is the base terms but for what the parameters say, which are those of
// a URL. As there, a bit width that is not given follows from the other two, and
// a quarantine that is not given from a term that is. 0 leaves maxLeases as it is.
func Override(base provider.Terms, params url.Values, maxLeases int) (provider.Terms, error) {
	q := url.Values{
		"pool":  {base.Pool},
		"epoch": {strconv.FormatInt(base.Timeline.EpochMS, 10)},
		"term":  {base.Term.String()},
	}
	if !params.Has("layout") {
		q.Set("bit_ts", strconv.Itoa(base.Timeline.BitTS))
	}
	if !params.Has("term") {
		q.Set("quarantine", base.Quarantine.String())
	}
	if !params.Has("bit_id") && !params.Has("bit_seq") && !params.Has("layout") {
		q.Set("bit_seq", strconv.Itoa(base.BitSeq))
	}
	if !base.IDs.IsAll() {
		q.Set("ids", base.IDs.String())
	}
	maps.Copy(q, params)
	out, err := provider.ParseTerms(q)
	if err != nil {
		return out, fmt.Errorf("its terms together: %w", err)
	}
	if out.MaxLeasesPerAcquire = base.MaxLeasesPerAcquire; maxLeases > 0 {
		out.MaxLeasesPerAcquire = maxLeases
	}
	return out, nil
}
