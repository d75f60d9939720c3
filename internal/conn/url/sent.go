package connurl

import "errors"

// ErrNotSent is wrapped by the error of a call of which no byte left this
// process, and none will: it has changed nothing. It is wrapped only where that
// is certain, so an error without it says nothing.
var ErrNotSent = errors.New("the request was not sent")

// NotSent makes err one that wraps ErrNotSent. Its text stays as it is.
func NotSent(err error) error {
	if err == nil || errors.Is(err, ErrNotSent) {
		return err
	}
	return &notSent{err}
}

type notSent struct{ error }

func (e *notSent) Unwrap() []error { return []error{e.error, ErrNotSent} }
