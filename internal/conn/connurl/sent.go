package connurl

import "errors"

// ErrNotSent is wrapped by the error of a call if no byte of it left this process, and
// none will: it has changed nothing. It is wrapped only if that is certain; without it, the
// call may or may not have been sent.
var ErrNotSent = errors.New("the request was not sent")

// NotSent makes err wrap ErrNotSent without changing its text.
func NotSent(err error) error {
	if err == nil || errors.Is(err, ErrNotSent) {
		return err
	}
	return &notSent{err}
}

type notSent struct{ error }

func (e *notSent) Unwrap() []error { return []error{e.error, ErrNotSent} }
