package config

import (
	"regexp"
	"strings"
)

// mask replaces a secret. It is what net/url uses.
const mask = "xxxxx"

var (
	schemeStart = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`)
	hostPort    = regexp.MustCompile(`^(\[[0-9A-Fa-f:.%a-z]*\]|[^:\[\]]*)(:[0-9]{0,5})?$`)
	// A parameter with a secret. Its name can follow a path if the "?" was forgotten, and a name with an escape can be any.
	secretParameter = regexp.MustCompile(`(?i)((?:^|[?&;#])[^=?&;#]*(?:` + secretWords + `|%)[^=?&;#]*=)[^?&;#]*`)
	// Where a secret ends in a connection string of words ("host=h password=x") is not known: all that follows is hidden.
	secretWord = regexp.MustCompile(`(?is)(^|\s)([a-z_]*(?:` + secretWords + `)[a-z_]*\s*=\s*).*`)
)

const secretWords = "pass|pwd|token|secret|credential|auth"

// Redact returns the URL without its secrets, for messages, logs and status: the
// password in its userinfo, and the value of every query parameter with a word for
// password, token or secret in its name. The URL may be malformed. Redact hides too much
// rather than too little: a password with an unescaped @, / or ? is hidden together with
// the text around it, and so is the text after "password=" in a connection string of
// words. Text without secrets comes back unchanged.
func Redact(u string) string {
	u = secretWord.ReplaceAllString(u, "${1}${2}"+mask)
	scheme := schemeStart.FindString(u)
	rest := u[len(scheme):]
	slashes := ""
	if strings.HasPrefix(rest, "//") {
		slashes, rest = "//", rest[2:]
	}
	isPath := slashes == "" && (strings.EqualFold(scheme, "sqlite:") || scheme == "" && strings.IndexAny(rest, "/.") == 0)
	// The last @ ends the userinfo of a malformed URL. In a well-formed one a later
	// @, for example in a parameter, only hides the host name. In a path it is an
	// ordinary character, unless the text before it looks like a user.
	at := strings.LastIndexByte(rest, '@')
	if at >= 0 && !(isPath && !strings.Contains(rest[:at], ":")) {
		host := rest[at+1:]
		if strings.ContainsAny(rest[:at], "?#&;=") {
			// The @ may also be part of a parameter's secret.
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

// redactUser keeps the user name of user:password only if it certainly is one. A
// userinfo of one part may be a token.
func redactUser(userinfo string) string {
	user, password, found := strings.Cut(userinfo, ":")
	if !found || (password == "" && user != "") || strings.ContainsAny(user, "/?#@&;=,") {
		return mask
	}
	return user + ":" + mask
}

// redactHosts hides text in the place of a port: it may be the password of
// user:password without @host. It hides the rest of the list too, since a password
// may contain commas.
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

// redactParameters hides the values of secret parameters in the text after the
// hosts.
func redactParameters(text string) string { return secretParameter.ReplaceAllString(text, "${1}"+mask) }
