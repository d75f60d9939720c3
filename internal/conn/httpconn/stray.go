package httpconn

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/kazahana/kazahana/internal/problem"
)

// proxyRule says where the settings of a proxy are.
const proxyRule = "docs/providers/http.md, behind a proxy, has the settings"

// strangeError is an answer that no lease server gives, with a status of success.
type strangeError struct{ what string }

func (e *strangeError) Error() string {
	return e.what + ": is this a lease server? A proxy or a login page may answer in its place: " + proxyRule
}

// Stray reports whether the call cannot reach a store until an operator mends something: a proxy
// changes requests or answers them by itself, the servers do not accept the credential, or they
// have no such store. err is the error of Do. A repetition fails in the same way. unsure says that
// a server may have carried the call out nevertheless.
func Stray(err error) (is, unsure bool) {
	if errors.As(err, new(*strangeError)) {
		return true, true
	}
	p := Settled(err)
	if p == nil {
		return false, false
	}
	switch p.Code {
	case problem.KeyMismatch, problem.NotFound, problem.MethodNotAllowed, problem.NotSupported, problem.Unauthenticated, problem.Forbidden:
		return true, false
	case "":
		return p.Status != http.StatusRequestTimeout && p.Status != http.StatusTooEarly, false
	}
	return false, false
}

// explained adds to the answer of a lease server how a request of this client can lead to it.
func explained(p *problem.Problem) *problem.Problem {
	switch p.Code {
	case problem.KeyMismatch, problem.NotFound, problem.MethodNotAllowed:
		p.Detail = fmt.Sprintf("%s: a proxy changes the path (%%2F) or drops the query; it must pass both on as they came: %s", p.Detail, proxyRule)
	}
	return p
}

// foreign is the problem of an answer that no lease server gives, and why it may have come.
func foreign(res *http.Response, text string) *problem.Problem {
	why := "is this a lease server? A proxy that changes the path (%2F) gives such answers: " + proxyRule
	switch code := res.StatusCode; {
	case code < http.StatusBadRequest:
		why = "redirects are not followed, since they would carry the credential elsewhere"
		if to, err := res.Location(); err == nil && to.Path == res.Request.URL.Path {
			why += fmt.Sprintf("; this one leads to %s://%s: is that the URL to use?", to.Scheme, to.Host)
		} else {
			why += ": a proxy must pass each path on as it came: " + proxyRule
		}
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusProxyAuthRequired:
		why = "a proxy forbids it, or wants a credential of its own"
	case code == http.StatusMisdirectedRequest:
		why = "a proxy passes on a host name that the server does not answer to: let it send the host localhost, or give the server tokens"
	case code == http.StatusRequestEntityTooLarge:
		why = "a proxy limits bodies to less than 112 KiB"
	case code == http.StatusGatewayTimeout:
		why = "a proxy did not wait for the server, which may take 30 s while a lock is waited for"
	case code >= http.StatusInternalServerError, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		why = "a proxy answers in place of the server"
	}
	said := ""
	if text != "" {
		said = " (" + text + ")"
	}
	return &problem.Problem{Detail: fmt.Sprintf("HTTP %s, and not as a lease server says it%s: %s", res.Status, said, why)}
}
