package httpconn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/problem"
)

const (
	maxProblem = 256 << 10
	// shownText limits how much of an answer that is not a problem an error shows.
	shownText = 120
)

// uncertainError says that the call may have been carried out. A later answer of a server
// about itself does not change that.
type uncertainError struct{ err error }

func (e *uncertainError) Error() string { return e.err.Error() }
func (e *uncertainError) Unwrap() error { return e.err }

// Settled returns the problem that a server answered with, if no server can have carried
// the call out; else nil.
func Settled(err error) *problem.Problem {
	var p *problem.Problem
	if errors.As(err, new(*uncertainError)) || !errors.As(err, &p) {
		return nil
	}
	return p
}

// isServersOwn reports whether the error is about one server, so that another
// one may do better.
func isServersOwn(err error) bool {
	var p *problem.Problem
	switch {
	case err == nil:
		return false
	case !errors.As(err, &p):
		return true // no answer, or not one of a lease server
	case p.Code == problem.Overloaded, p.Code == problem.Unavailable,
		p.Code == problem.Unauthenticated || p.Code == problem.Forbidden: // others may know the credential
		return true
	case p.Code == "", p.Code == problem.KeyMismatch: // of a proxy in between, or because of it
		return true
	}
	return false
}

// isRequests reports whether the error is about the request itself: no store was asked.
func isRequests(err error) bool {
	var p *problem.Problem
	if !errors.As(err, &p) {
		return false
	}
	switch p.Code {
	case problem.RateLimited, problem.InvalidRequest, problem.TooLarge, problem.UnsupportedMedia, problem.NotFound, problem.MethodNotAllowed, problem.NotSupported:
		return true
	}
	return false
}

// transportError drops the URL, which the caller adds.
func transportError(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// readJSON reads an answer of at most limit bytes.
func readJSON(res *http.Response, limit int64, into any) error {
	if given := res.Header.Get("Content-Type"); given != "" {
		if media, _, err := mime.ParseMediaType(given); err != nil || media != jsonType {
			return &strangeError{fmt.Sprintf("the answer is %q and not JSON", shorten(given))}
		}
	}
	if res.ContentLength > limit {
		return fmt.Errorf("the answer has %d bytes, and may have %d", res.ContentLength, limit)
	}
	body := &io.LimitedReader{R: res.Body, N: limit + 1}
	decoder := json.NewDecoder(body)
	if err := decoder.Decode(into); err != nil {
		if body.N <= 0 {
			return fmt.Errorf("the answer is larger than %d bytes", limit)
		}
		return fmt.Errorf("the answer is malformed: %w", err)
	}
	// Nothing may follow. Reading to the end also lets the connection be reused.
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the answer is malformed: something follows the JSON")
	}
	return nil
}

// isHTML reports whether the answer is a page for people, which no lease server sends here.
func isHTML(res *http.Response) bool {
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return media == "text/html"
}

// problemOf is the error of an answer that is not a success.
func problemOf(res *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	if err != nil {
		return &uncertainError{err}
	}
	p := &problem.Problem{}
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if media != problem.MediaType || json.Unmarshal(body, p) != nil || p.Code == "" {
		if isHTML(res) {
			body = nil // too long for a log
		}
		p = foreign(res, shorten(strings.TrimSpace(string(body))))
	}
	p.Status = res.StatusCode
	if p.RetryAfterMS <= 0 {
		if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
			p.RetryAfterMS = int64(min(s, int(time.Hour/time.Second))) * 1000
		}
	}
	switch {
	case p.Code == "" && res.StatusCode == http.StatusTooManyRequests:
		p.Code = problem.RateLimited // of a proxy in between
	case p.Code == "" && res.StatusCode == http.StatusNotImplemented:
		p.Code = problem.NotSupported // of a server of another make
	case p.Code == "" && res.StatusCode >= http.StatusInternalServerError, p.Code == problem.Unavailable:
		return &uncertainError{p}
	}
	return explained(p)
}

// shorten shortens a foreign answer for the log.
func shorten(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > shownText {
		return strings.ToValidUTF8(s[:shownText], "") + "..."
	}
	return s
}
