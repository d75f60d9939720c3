package connurl

import (
	"cmp"
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
	if hint := hintFor(name, allowed); hint != "" {
		text = hint + "; " + text
	}
	return fmt.Errorf("the provider URL has a parameter %q that is not known here: %s", name, text)
}

// elsewhere is what other tools call a parameter of ours.
var elsewhere = map[string]string{
	"sslrootcert": "ca_file", "ssl_ca_certs": "ca_file", "ssl_ca_file": "ca_file", "cacert": "ca_file", "tls_ca_file": "ca_file", "ssl_cafile": "ca_file",
	"sslcert": "cert_file", "ssl_certfile": "cert_file", "cert": "cert_file", "tls_cert_file": "cert_file",
	"sslkey": "key_file", "ssl_keyfile": "key_file", "key": "key_file", "tls_key_file": "key_file",
	"ssl": "tls", "ssl_mode": "sslmode", "ssl_cert_reqs": "sslmode", "sslnegotiation": "sslmode",
	"user": "username", "password": "password_file", "pass": "password_file", "auth": "password_file", "passfile": "password_file",
	"token": "token_file", "bearer_token": "token_file", "api_key": "token_file", "key_prefix": "prefix", "namespace": "prefix",
	"search_path": "schema", "currentschema": "schema", "options": "schema",
	"pool_size": "max_connections", "pool_max_conns": "max_connections", "max_conns": "max_connections", "ttl": "term",
}

// needless says what to do instead of parameters that have no counterpart here.
var needless = map[string]string{
	"application_name": "sessions are named kazahana", "target_session_attrs": "of several hosts, the one that takes writes is used",
	"connect_timeout": timeouts, "timeout": timeouts, "socket_timeout": timeouts, "socket_connect_timeout": timeouts, "dial_timeout": timeouts,
	"read_timeout": timeouts, "write_timeout": timeouts, "statement_timeout": timeouts, "busy_timeout": timeouts, "_busy_timeout": timeouts,
	"dbname": databases, "database": databases, "db": databases,
	"master": sentinels, "mastername": sentinels, "master_name": sentinels, "sentinelmasterid": sentinels,
}

const (
	timeouts  = "calls end after the setting provider_timeout"
	databases = "the database is the path of the URL"
	sentinels = "the name of the set is the path: redis+sentinel://HOST1,HOST2/NAME/0"
	schemes   = "TLS is chosen by the scheme: rediss://, rediss+sentinel:// or https://"
)

// hintFor is what to write instead of a parameter of another tool, "" where that is not known.
func hintFor(name string, allowed []string) string {
	name = strings.ToLower(name)
	ours := elsewhere[name]
	switch {
	case ours != "" && slices.Contains(allowed, ours):
		return "write " + ours + "="
	case slices.Contains([]string{"tls", "sslmode"}, cmp.Or(ours, name)) && slices.Contains(allowed, "tls"):
		return "write tls=true"
	case slices.Contains([]string{"tls", "sslmode"}, cmp.Or(ours, name)) && slices.Contains(allowed, "sslmode"):
		return "write sslmode="
	case slices.Contains([]string{"tls", "sslmode"}, cmp.Or(ours, name)) && (slices.Contains(allowed, "ca_file") || slices.Contains(allowed, "min_replicas")):
		return schemes
	}
	return needless[name]
}
