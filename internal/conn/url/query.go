package connurl

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// ParseQuery parses the query of a provider URL. Every parameter must be an allowed one,
// and may occur once. Errors name parameters and never repeat a value: a misspelt
// "pasword=" still holds a password.
func ParseQuery(rawQuery string, allowed []string) (url.Values, error) {
	q, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, fmt.Errorf("the part of the provider URL after '?' is malformed: parameters are name=value, separated by '&', with special characters percent-encoded")
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if !slices.Contains(allowed, name) {
			return nil, fmt.Errorf("the provider URL has a parameter %q that is not known here: %s", name, allowedText(allowed))
		}
		if len(q[name]) > 1 {
			return nil, fmt.Errorf("the provider URL has the parameter %q %d times", name, len(q[name]))
		}
	}
	return q, nil
}

func allowedText(allowed []string) string {
	if len(allowed) == 0 {
		return "this provider takes none"
	}
	return "allowed are " + strings.Join(allowed, ", ")
}
