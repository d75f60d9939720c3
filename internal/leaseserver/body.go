package leaseserver

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/problem"
)

func metricsHandler(m *metrics.LeaseServer) http.Handler {
	return promhttp.HandlerFor(m.Registry, promhttp.HandlerOpts{})
}

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

// readBody reads a JSON object. Without a body, into stays unchanged.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, who Credential, into any) error {
	size, room := r.ContentLength, r.ContentLength
	switch {
	case size > leaseapi.MaxRequestBytes:
		return tooLarge(leaseapi.MaxRequestBytes)
	case size < 0: // not known
		size, room = leaseapi.MaxRequestBytes, smallBody
	}
	give, err := s.bodies.take(who.Tenant, size)
	if err != nil {
		s.o.Quotas.Refuse(quota.Refusal{Quota: "memory_limit", Limit: s.bodies.memory().Reservable, Whose: "tenant " + who.Tenant})
		return err
	}
	defer give()
	b := bytes.NewBuffer(make([]byte, 0, room+bytes.MinRead))
	_, err = b.ReadFrom(http.MaxBytesReader(w, r.Body, leaseapi.MaxRequestBytes))
	if err != nil {
		var larger *http.MaxBytesError
		if errors.As(err, &larger) {
			return tooLarge(larger.Limit)
		}
		return problem.New(problem.InvalidRequest, "the body could not be read to its end")
	}
	if b.Len() == 0 {
		return nil
	}
	if err := checkMedia(r.Header.Get("Content-Type")); err != nil {
		return err
	}
	return decode(b.Bytes(), into)
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

// decode reads one JSON object and nothing after it. It ignores unknown fields: see
// package leaseapi.
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
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || strconv.FormatInt(id, 10) != r.PathValue("id") { // refuses +5 and 05
		return 0, problem.New(problem.InvalidRequest, "the path ends in a machine ID, a whole number")
	}
	return id, nil
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
	n, err := strconv.ParseInt(q.Get(name), 10, 64)
	if err != nil {
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
