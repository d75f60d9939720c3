package config

import (
	"net/url"
	"regexp"
	"strings"
)

// mask replaces a secret. It is what net/url uses.
const mask = "xxxxx"

var (
	schemeStart = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`)
	hostPort    = regexp.MustCompile(`^(\[[0-9A-Fa-f:.%a-z]*\]|[^:\[\]]*)(:[0-9]{0,5})?$`)
	// A parameter's name can follow a path when somebody forgot the "?".
	parameterBreak = regexp.MustCompile(`[?&;#]`)
)

// Redact returns the URL without its secrets, for messages, logs and status: the
// password in its userinfo, and the value of every query parameter whose name
// speaks of a password, a token or a secret. It does not need the URL to be well
// formed, and hides too much rather than too little: a password with an
// unescaped @, / or ? in it is hidden with whatever surrounds it. Text without
// secrets comes back unchanged.
func Redact(u string) string {
	scheme := schemeStart.FindString(u)
	rest := u[len(scheme):]
	slashes := ""
	if strings.HasPrefix(rest, "//") {
		slashes, rest = "//", rest[2:]
	}
	isPath := slashes == "" && (strings.EqualFold(scheme, "sqlite:") || scheme == "" && strings.IndexAny(rest, "/.") == 0)
	// The last @ ends the userinfo of a malformed URL. In a well-formed one a
	// later @, say in a parameter, costs the reader only a host name. In a path
	// it is a letter, unless what stands before it looks like a user.
	at := strings.LastIndexByte(rest, '@')
	if at >= 0 && !(isPath && !strings.Contains(rest[:at], ":")) {
		host := rest[at+1:]
		if strings.ContainsAny(rest[:at], "?#&;=") {
			// The @ may as well be part of a parameter's secret.
			end := strings.IndexAny(host, "?#&;")
			if end < 0 {
				end = len(host)
			}
			host = mask + host[end:]
		}
		user := mask
		if slashes != "" {
			user = redactUser(rest[:at]) // else any part of it may be the password
		}
		return scheme + slashes + user + "@" + redactParameters(host)
	}
	if slashes != "" {
		end := strings.IndexAny(rest, "/?#")
		if end < 0 {
			end = len(rest)
		}
		return scheme + slashes + redactHosts(rest[:end]) + redactParameters(rest[end:])
	}
	return scheme + redactParameters(rest)
}

// redactUser keeps the user name of user:password where it is surely one. A
// userinfo of one part is a token as often as a name.
func redactUser(userinfo string) string {
	user, password, found := strings.Cut(userinfo, ":")
	if !found || (password == "" && user != "") || strings.ContainsAny(user, "/?#@&;=,") {
		return mask
	}
	return user + ":" + mask
}

// redactHosts hides what stands where a port should be: user:password whose
// @host was forgotten. It hides the rest of the list with it, since a password
// may hold commas.
func redactHosts(authority string) string {
	hosts := strings.Split(authority, ",")
	for i, host := range hosts {
		if hostPort.MatchString(host) {
			continue
		}
		name, _, found := strings.Cut(host, ":")
		if !found || strings.HasPrefix(host, "[") {
			hosts[i] = mask
		} else {
			hosts[i] = name + ":" + mask
		}
		return strings.Join(hosts[:i+1], ",")
	}
	return authority
}

// redactParameters hides the values of telling parameters in the text after the
// userinfo and the hosts.
func redactParameters(text string) string {
	var out strings.Builder
	for text != "" {
		separator := ""
		if loc := parameterBreak.FindStringIndex(text); loc != nil && loc[0] == 0 {
			separator, text = text[:1], text[1:]
		}
		part := text
		if loc := parameterBreak.FindStringIndex(text); loc != nil {
			part = text[:loc[0]]
		}
		text = text[len(part):]
		out.WriteString(separator)
		name, _, found := strings.Cut(part, "=")
		if found && tellsSecret(name) {
			part = name + "=" + mask
		}
		out.WriteString(part)
	}
	return out.String()
}

// tellsSecret reports whether a parameter of this name may hold a secret.
func tellsSecret(name string) bool {
	decoded, err := url.QueryUnescape(name)
	if err != nil {
		return true
	}
	decoded = strings.ToLower(decoded)
	for _, word := range []string{"pass", "pwd", "token", "secret", "credential", "auth"} {
		if strings.Contains(decoded, word) {
			return true
		}
	}
	return false
}
