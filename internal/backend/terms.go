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

// OwnTerms are the terms of services that have some of their own, by the service's name. own says
// them as parameters of the provider's URL, and max_leases_per_acquire.
func OwnTerms(rawURL string, own map[string]url.Values) (map[string]provider.Terms, error) {
	if len(own) == 0 {
		return nil, nil
	}
	base, err := Terms(rawURL)
	if err != nil {
		return nil, fmt.Errorf("provider: %w", err)
	}
	all := map[string]provider.Terms{}
	for name, params := range own {
		if all[name], err = override(base, params); err != nil {
			return nil, fmt.Errorf("services.%s: its terms together: %w", name, err)
		}
	}
	return all, nil
}

// override is the base terms but for what the parameters say. As in a URL, a bit width that is not
// given follows from the other two, and a quarantine that is not given from a term that is.
func override(base provider.Terms, params url.Values) (provider.Terms, error) {
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
		return out, err
	}
	out.MaxLeasesPerAcquire = base.MaxLeasesPerAcquire
	if most := params.Get("max_leases_per_acquire"); most != "" {
		out.MaxLeasesPerAcquire, err = strconv.Atoi(most)
	}
	return out, err
}
