package leaseserver

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kazahana/kazahana/internal/didyoumean"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
)

func writeText(w http.ResponseWriter, text string) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, err := io.WriteString(w, text)
	return err
}

// writeJSON answers with the value. It returns errors of the connection.
func writeJSON(w http.ResponseWriter, status int, media string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	_, err = w.Write(append(b, '\n'))
	return err
}

func answer(w http.ResponseWriter, v any) error {
	_ = writeJSON(w, http.StatusOK, leaseapi.ContentType, v) // an error means that the peer has gone
	return nil
}

// wholeBody is a body that has been read to its end.
type wholeBody struct {
	io.ReadCloser
	bytes []byte
	give  func() // their memory
}

// release ends what keeps the bytes: net/http has the request until the handler returns, which
// may wait for a lock.
func (b *wholeBody) release() {
	b.bytes = nil
	b.give()
}

// receive reads the request's body, so that what follows waits for no client. give gives its
// memory back.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, who Credential) (give func(), err error) {
	size, room := r.ContentLength, r.ContentLength
	switch {
	case r.Method == http.MethodGet:
		return func() {}, nil
	case size > leaseapi.MaxRequestBytes:
		return nil, tooLarge(leaseapi.MaxRequestBytes)
	case size < 0: // not known
		size, room = leaseapi.MaxRequestBytes, smallBody
	}
	if give, err = s.bodies.take(who.Tenant, size); err != nil {
		w.Header().Set("Connection", "close")
		s.o.Refusals.Refuse("memory_limit", fmt.Sprintf("tenant %q: %v", who.Tenant, err))
		return nil, err
	}
	give = sync.OnceFunc(give)
	b := bytes.NewBuffer(make([]byte, 0, room+bytes.MinRead))
	if _, err = b.ReadFrom(http.MaxBytesReader(w, r.Body, leaseapi.MaxRequestBytes)); err != nil {
		give()
		if larger, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, tooLarge(larger.Limit)
		}
		return nil, problem.New(problem.InvalidRequest, "the body could not be read to its end")
	}
	r.Body = &wholeBody{r.Body, b.Bytes(), give}
	return give, nil
}

// readBody decodes the JSON object that was received, and lets go of its bytes. Without a body,
// into stays unchanged. Unknown fields are ignored.
func readBody(r *http.Request, into any) error {
	return decodeBody(r, into, func([]byte) error { return nil })
}

// readStrict is readBody, and refuses unknown fields.
func readStrict(r *http.Request, into any) error {
	return decodeBody(r, into, func(b []byte) error { return checkFields(b, into) })
}

func decodeBody(r *http.Request, into any, check func([]byte) error) error {
	body := r.Body.(*wholeBody)
	defer body.release()
	if len(body.bytes) == 0 {
		return nil
	}
	if err := checkMedia(r.Header.Get("Content-Type")); err != nil {
		return err
	}
	if err := decode(body.bytes, into); err != nil {
		return err
	}
	return check(body.bytes)
}

// checkFields refuses fields that the request does not have, or has twice: a request with a
// misspelt wait_ms would not wait for the lock.
func checkFields(b []byte, into any) error {
	known, seen := fieldNames(reflect.TypeOf(into).Elem()), map[string]bool{}
	object := json.NewDecoder(bytes.NewReader(b))
	_, _ = object.Token() // what follows was decoded before
	for object.More() {
		token, _ := object.Token()
		name, _ := token.(string)
		var value json.RawMessage
		_ = object.Decode(&value)
		near := didyoumean.Name(name, known)
		switch {
		case seen[name]:
			return problem.New(problem.InvalidRequest, "the field %q is there twice", name)
		case slices.Contains(known, name):
			seen[name] = true
		case near != "":
			return problem.New(problem.InvalidRequest, "there is no field %q here: did you mean %q?", name, near)
		default:
			return problem.New(problem.InvalidRequest, "there is no field %q here; there are %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// fieldNames are the names of a struct's fields in JSON.
func fieldNames(t reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func tooLarge(limit int64) error {
	return problem.New(problem.TooLarge, "the body is larger than %d bytes", limit)
}

// checkMedia insists on JSON: other media types a web page can make a browser send
// without a preflight request.
func checkMedia(header string) error {
	media, _, err := mime.ParseMediaType(header)
	if err != nil || media != leaseapi.ContentType && !strings.HasSuffix(media, "+json") {
		return problem.New(problem.UnsupportedMedia, "the body must be JSON: send the header Content-Type: application/json")
	}
	return nil
}

// decode reads one JSON object and nothing after it. It ignores unknown fields.
func decode(b []byte, into any) error {
	if trimmed := strings.TrimLeft(string(b[:min(len(b), 64)]), " \t\r\n"); trimmed != "" && trimmed[0] != '{' {
		return problem.New(problem.InvalidRequest, "the body must be a JSON object")
	}
	err := json.Unmarshal(b, into)
	var wrongType *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	var encoding base64.CorruptInputError
	switch {
	case errors.As(err, &wrongType):
		return problem.New(problem.InvalidRequest, "the field %q cannot be a JSON %s here", wrongType.Field, wrongType.Value)
	case errors.As(err, &syntax):
		return problem.New(problem.InvalidRequest, "the body is not JSON: %v at byte %d", syntax, syntax.Offset)
	case errors.As(err, &encoding):
		return problem.New(problem.InvalidRequest, "a field must be base64, and is not at byte %d of its text", int64(encoding))
	case err != nil:
		return problem.New(problem.InvalidRequest, "the body is not JSON")
	}
	return nil
}

// machineID is the {id} of the path.
func machineID(r *http.Request) (int64, error) {
	id, ok := wholeNumber(r.PathValue("id"))
	if !ok {
		return 0, problem.New(problem.InvalidRequest, "the path ends in a machine ID, a whole number")
	}
	return id, nil
}

// wholeNumber parses a number that has one spelling: +5 and 05 are none.
func wholeNumber(text string) (n int64, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == text
}

// sameKey refuses a request if its path names another key than its body or its query. A proxy
// that decodes, merges or lowers paths would make it a request for another key.
func sameKey(r *http.Request, name, inPath, inBody string) error {
	q, err := readQuery(r)
	if err != nil {
		return err
	}
	for _, said := range append([]string{inBody}, q[name]...) {
		if said != "" && said != inPath {
			return problem.New(problem.KeyMismatch, "the path names %q, and %s is %q", inPath, name, said)
		}
	}
	return nil
}

// readQuery reads the query. Unknown parameters are ignored, as in a body.
func readQuery(r *http.Request) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, problem.New(problem.InvalidRequest, "the query is malformed")
	}
	return q, nil
}

// number reads a whole number from the query; nil if it is missing.
func number(q url.Values, name string) (*int64, error) {
	if !q.Has(name) {
		return nil, nil
	}
	n, ok := wholeNumber(q.Get(name))
	if !ok {
		return nil, problem.New(problem.InvalidRequest, "the parameter %q must be a whole number", name)
	}
	return &n, nil
}

// fill takes fields that the body leaves out from the query, for proxies that drop the
// body of a DELETE.
func fill(req *leaseapi.ReleaseRequest, q url.Values) error {
	if req.Signature == "" {
		req.Signature = q.Get(leaseapi.ParamSignature)
	}
	if req.ServiceID == "" {
		req.ServiceID = q.Get(leaseapi.ParamService)
	}
	req.AtEnd = req.AtEnd || q.Get(leaseapi.ParamAtEnd) == "true"
	if req.ID == nil {
		id, err := number(q, leaseapi.ParamID)
		if err != nil {
			return err
		}
		req.ID = id
	}
	if req.Timestamp == nil {
		at, err := number(q, leaseapi.ParamTimestamp)
		if err != nil {
			return err
		}
		req.Timestamp = at
	}
	if req.BitSeq == nil {
		n, err := number(q, leaseapi.ParamBitSeq)
		if err != nil {
			return err
		}
		if n != nil {
			bitSeq := int(*n)
			req.BitSeq = &bitSeq
		}
	}
	if req.Timestamp == nil {
		return problem.New(problem.InvalidRequest, "the timestamp is missing: give it in the body or as a query parameter")
	}
	return nil
}
