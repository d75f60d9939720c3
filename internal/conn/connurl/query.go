package connurl

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// ParseQuery parses the query of a provider URL. Every parameter must be an allowed one,
// and may occur once. Errors name parameters and never repeat a value: a misspelt
// "pasword=" still holds a password. Nor do they repeat a text that may be the rest of a
// password with a '?' in it.
func ParseQuery(rawQuery string, allowed []string) (url.Values, error) {
	q, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, errMalformed
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if !slices.Contains(allowed, name) {
			return nil, unknown(name, rawQuery, allowed)
		}
		if len(q[name]) > 1 {
			return nil, fmt.Errorf("the provider URL has the parameter %q %d times", name, len(q[name]))
		}
		if strings.ContainsAny(q[name][0], "@?") && !freeText.MatchString(name) {
			return nil, errMalformed
		}
	}
	return q, nil
}

// Some is ParseQuery for a caller that reads these parameters only: others it leaves out.
func Some(rawQuery string, names []string) (url.Values, error) {
	q, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, errMalformed
	}
	if _, err := ParseQuery(rawQuery, slices.Collect(maps.Keys(q))); err != nil {
		return nil, err
	}
	maps.DeleteFunc(q, func(name string, _ []string) bool { return !slices.Contains(names, name) })
	return q, nil
}

// With is the URL with another parameter, for people.
func With(rawURL, name, value string) string {
	separator := "?"
	if strings.Contains(rawURL, separator) {
		separator = "&"
	}
	return rawURL + separator + name + "=" + strings.ReplaceAll(url.QueryEscape(value), "%2F", "/")
}

var (
	errMalformed = errors.New("the part of the provider URL after '?' is malformed, and not shown, since it may be part of a password: parameters are name=value, separated by '&'; " +
		"special characters must be percent-encoded: in a password, write %3F for '?', %40 for '@', %26 for '&', %23 for '#', %2F for '/'")
	// freeText: values that may have an '@' or a '?'.
	freeText = regexp.MustCompile(`^(host|prefix|(.*_)?username|.*_file)$`)
	// parameterName: a name that can be shown.
	parameterName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,40}$`)
)

// unknown is the error for a parameter that is not allowed. An '@' in the query may be the
// one before the host.
func unknown(name, rawQuery string, allowed []string) error {
	if strings.Contains(rawQuery, "@") || !parameterName.MatchString(name) || !strings.Contains("&"+rawQuery, "&"+name+"=") {
		return errMalformed
	}
	text := "this provider takes none"
	if len(allowed) > 0 {
		text = "allowed are " + strings.Join(allowed, ", ")
	}
	return fmt.Errorf("the provider URL has a parameter %q that is not known here: %s", name, text)
}
