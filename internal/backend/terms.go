package backend

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/provider"
)

// Settings say the terms of services: those of a daemon or of a lease server.
type Settings interface {
	// Terms are those of services that have some of their own, by the service's name, as parameters
	// of the provider's URL, and max_leases_per_acquire.
	Terms() map[string]url.Values
	// DefaultTerms is a service of Terms whose terms are those of ProviderOptions.Default; "" for none.
	DefaultTerms() string
	// CiteTerms names a service of Terms with the place where it is set; "" for another one.
	CiteTerms(service string) string
}

// Terms is what the provider URL grants to services that have no terms of their
// own.
func Terms(rawURL string) (provider.Terms, error) {
	params, err := termsIn(rawURL)
	if err != nil {
		return provider.Terms{}, err
	}
	return provider.ParseTerms(params)
}

// termsIn are the parameters of the URL that are terms.
func termsIn(rawURL string) (url.Values, error) {
	_, query, _ := strings.Cut(rawURL, "?")
	return connurl.Some(query, provider.TermsParams())
}

// OptionsFor are the options of a provider that grants on the terms of the settings. asked is a
// service that a command asks for, and need not be one of the settings; "" for none.
func OptionsFor(rawURL, asked string, settings Settings) (o ProviderOptions, err error) {
	own := settings.Terms()
	if len(own) == 0 {
		return o, nil
	}
	base, err := Terms(rawURL)
	if err != nil {
		return o, fmt.Errorf("provider: %w", err)
	}
	o.Services = map[string]provider.Terms{}
	if asked != "" {
		o.Services[asked] = base
	}
	for _, service := range slices.Sorted(maps.Keys(own)) {
		if o.Services[service], err = override(base, own[service]); err != nil {
			return o, together(service, settings, err)
		}
	}
	o.Default = o.Services[settings.DefaultTerms()]
	return o, agree(o.services(base), settings)
}

// OptionsToAsk are OptionsFor a command that has the URL from its command line: what stands there
// wins over the terms of the service that it asks for. The command is granted nothing for the other
// services, so that only their pools count, and how long their leases last.
func OptionsToAsk(rawURL, asked string, settings Settings) (o ProviderOptions, err error) {
	base, err := Terms(rawURL)
	if err != nil {
		return o, fmt.Errorf("provider: %w", err)
	}
	told, _ := termsIn(rawURL) // Terms has read them
	own := settings.Terms()
	t, err := override(base, outranking(told, own[asked]))
	if err != nil {
		return o, together(asked, settings, err)
	}
	o.Services = map[string]provider.Terms{asked: t}
	// In one pool they agree.
	beside := func(other provider.Terms) provider.Terms {
		if other.Pool == t.Pool {
			other.Timeline, other.BitID, other.BitSeq, other.IDs = t.Timeline, t.BitID, t.BitSeq, t.IDs
		}
		return other
	}
	for _, service := range slices.Sorted(maps.Keys(own)) {
		if service == asked {
			continue
		}
		params := maps.Clone(own[service])
		maps.DeleteFunc(params, func(name string, _ []string) bool {
			return !slices.Contains([]string{"pool", "term", "quarantine"}, name)
		})
		other, err := override(base, params)
		if err != nil {
			return o, together(service, settings, err)
		}
		o.Services[service] = beside(other)
	}
	if o.Default = o.Services[settings.DefaultTerms()]; o.Default == (provider.Terms{}) {
		o.Default = beside(base)
	}
	return o, nil
}

// exclusive are the parameters that a parameter of the layout leaves no room for.
var exclusive = map[string][]string{
	"layout": {"bit_ts", "bit_id", "bit_seq"}, "bit_ts": {"layout"}, "bit_id": {"layout", "bit_seq"}, "bit_seq": {"layout", "bit_id"},
}

// outranking is a service's own terms, but for what a URL says.
func outranking(told, own url.Values) url.Values {
	params := url.Values{}
	maps.Copy(params, own)
	for name := range told {
		for _, other := range exclusive[name] {
			params.Del(other)
		}
	}
	maps.Copy(params, told)
	return params
}

func together(service string, settings Settings, err error) error {
	return fmt.Errorf("%s: its terms together: %w", settings.CiteTerms(service), err)
}

// agree reports, as an error that says where, that two services cannot have one pool.
func agree(services provider.Services, settings Settings) error {
	err := services.Validate()
	if of, ok := errors.AsType[*provider.ServiceError](err); ok && settings.CiteTerms(of.Service) != "" {
		return fmt.Errorf("%s: %w", settings.CiteTerms(of.Service), of.Err)
	}
	return err
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
