package kubeconn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StatusError is an answer of the API server that is not a success.
type StatusError struct {
	Status     int // of HTTP
	Message    string
	RetryAfter time.Duration // 0 where the server did not say
	Verb       string        // of RBAC: get, list, create, update
	Namespace  string
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("%s of leases in namespace %q: HTTP %d: %s", e.Verb, e.Namespace, e.Status, e.Message)
	if e.Status == http.StatusForbidden {
		text += "; the missing rule of the Role is " + rule(e.Verb)
	}
	return text
}

// rule is the rule of a Role that allows the verbs.
func rule(verbs ...string) string {
	text, _ := json.Marshal(verbs) // never fails: they are strings
	return fmt.Sprintf(`{apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: %s}`, text)
}

// is reports whether the error is a StatusError with this HTTP status.
func is(err error, status int) bool {
	var e *StatusError
	return errors.As(err, &e) && e.Status == status
}

// IsNotFound reports whether there is no such object.
func IsNotFound(err error) bool { return is(err, http.StatusNotFound) }

// IsConflict reports whether the object has changed since it was read, or exists where a
// new one was to be made, or is gone. The write has changed nothing.
func IsConflict(err error) bool { return is(err, http.StatusConflict) }

// IsSettled reports whether the error is an answer that says that nothing was changed.
func IsSettled(err error) bool {
	var e *StatusError
	return errors.As(err, &e) && e.Status >= 400 && e.Status < 500 && e.Status != http.StatusRequestTimeout
}

// Limits of an answer that is an error.
const (
	maxStatus    = 64 << 10
	shownMessage = 400
)

// statusOf is the error of an answer that is not a success.
func statusOf(res *http.Response, verb, namespace string) *StatusError {
	e := &StatusError{Status: res.StatusCode, Verb: verb, Namespace: namespace}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxStatus))
	var s metav1.Status
	if json.Unmarshal(body, &s) == nil && s.Kind == "Status" {
		e.Message = s.Message
	} else {
		e.Message = strings.ToValidUTF8(strings.Join(strings.Fields(string(body)), " "), "?")
	}
	if e.Message == "" {
		e.Message = http.StatusText(res.StatusCode)
	}
	if len(e.Message) > shownMessage {
		e.Message = strings.ToValidUTF8(e.Message[:shownMessage], "") + "..."
	}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(min(s, longestRetry)) * time.Second
	}
	return e
}

// longestRetry bounds the wait that a server may ask for, in seconds.
const longestRetry = 300
