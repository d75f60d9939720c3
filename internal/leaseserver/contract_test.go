package leaseserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// contract is api/openapi.yaml.
type contract struct {
	doc      map[string]any
	compiler *jsonschema.Compiler

	mu      sync.Mutex // guards compiled and the compiler
	schemas map[string]*jsonschema.Schema
}

// theContract is read once for all tests.
var theContract = sync.OnceValues(func() (*contract, error) {
	b, err := os.ReadFile("../../api/openapi.yaml")
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := yaml.Unmarshal(b, &tree); err != nil {
		return nil, err
	}
	doc, err := asJSON(tree)
	if err != nil {
		return nil, err
	}
	c := &contract{doc: doc.(map[string]any), compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}}
	c.closeSchemas()
	return c, c.compiler.AddResource(contractURL, c.doc)
})

const contractURL = "urn:openapi"

func asJSON(v any) (any, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(b))
}

// closeSchemas has answers with members that the file does not name be wrong.
// Clients must ignore such members, so that the file itself does not say so.
func (c *contract) closeSchemas() {
	for name, s := range c.at("components", "schemas").(map[string]any) {
		schema := s.(map[string]any)
		if _, has := schema["properties"]; has && !strings.HasSuffix(name, "Request") {
			schema["unevaluatedProperties"] = false
		}
	}
}

// at is what the file has below the names, nil for nothing.
func (c *contract) at(names ...string) any {
	var v any = c.doc
	for _, name := range names {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// pointer follows a $ref, if there is one at the names.
func (c *contract) follow(names []string) []string {
	m, _ := c.at(names...).(map[string]any)
	ref, ok := m["$ref"].(string)
	if !ok {
		return names
	}
	return strings.Split(strings.TrimPrefix(ref, "#/"), "/")
}

func (c *contract) schema(names ...string) (*jsonschema.Schema, error) {
	for i, name := range names {
		names[i] = strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
	}
	// The fragment is a URI's.
	where := contractURL + "#" + (&url.URL{Path: "/" + strings.Join(names, "/")}).EscapedPath()
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.schemas[where]; ok {
		return s, nil
	}
	s, err := c.compiler.Compile(where)
	c.schemas[where] = s
	return s, err
}

// operation is an operation that the file describes.
type operation struct{ method, path string }

func (o operation) String() string { return o.method + " " + o.path }

func (c *contract) operations() (all []operation) {
	for path, item := range c.at("paths").(map[string]any) {
		for method := range item.(map[string]any) {
			if method != "parameters" {
				all = append(all, operation{strings.ToUpper(method), path})
			}
		}
	}
	slices.SortFunc(all, func(a, b operation) int { return strings.Compare(a.String(), b.String()) })
	return all
}

func (c *contract) names(o operation, more ...string) []string {
	return append([]string{"paths", o.path, strings.ToLower(o.method)}, more...)
}

// find is the operation that a request is for.
func (c *contract) find(method, escapedPath string) (operation, bool) {
	segments := strings.Split(escapedPath, "/")
	best, found := operation{}, false
	for _, o := range c.operations() {
		template := strings.Split(o.path, "/")
		if o.method != method || len(template) != len(segments) {
			continue
		}
		fits := true
		for i, t := range template {
			fits = fits && (t == segments[i] || strings.HasPrefix(t, "{") && segments[i] != "")
		}
		if fits && (!found || strings.Contains(best.path, "{")) {
			best, found = o, true
		}
	}
	return best, found
}

// statuses are the possible statuses of the operation's answers.
func (c *contract) statuses(o operation) (all []int) {
	for status := range c.at(c.names(o, "responses")...).(map[string]any) {
		n, _ := strconv.Atoi(status)
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// codes are the codes of the response's problems, nil for an answer that is no problem.
func (c *contract) codes(response []string) (all []problem.Code) {
	parts, _ := c.at(append(slices.Clone(response), "content", problem.MediaType, "schema", "allOf")...).([]any)
	for _, part := range parts {
		m := part.(map[string]any)
		properties, _ := m["properties"].(map[string]any)
		code, _ := properties["code"].(map[string]any)
		enum, _ := code["enum"].([]any)
		for _, v := range enum {
			all = append(all, problem.Code(v.(string)))
		}
	}
	return all
}

// check says what the file does not allow about an answer.
func (c *contract) check(method string, at *url.URL, requestBody []byte, status int, header http.Header, body []byte) error {
	o, known := c.find(method, at.EscapedPath())
	var response []string
	switch {
	case !known && status == http.StatusNotFound:
		response = []string{"components", "responses", "NotFound"}
	case !known && status == http.StatusMethodNotAllowed:
		response = []string{"components", "responses", "MethodNotAllowed"}
	case !known:
		return fmt.Errorf("%s %s is not in the file, and was answered %d", method, at, status)
	default:
		response = c.follow(c.names(o, "responses", strconv.Itoa(status)))
	}
	if c.at(response...) == nil {
		return fmt.Errorf("%v has no answer with status %d in the file", o, status)
	}
	if status < 300 {
		if err := c.checkRequest(o, requestBody); err != nil {
			return fmt.Errorf("%v was carried out, and the file does not allow its body %s: %w", o, requestBody, err)
		}
	}
	if err := c.checkHeaders(response, header); err != nil {
		return fmt.Errorf("%v, status %d: %w", o, status, err)
	}
	if err := c.checkBody(response, header.Get("Content-Type"), body); err != nil {
		return fmt.Errorf("%v, status %d: %w: %s", o, status, err, body[:min(len(body), 1000)])
	}
	return nil
}

func (c *contract) checkRequest(o operation, body []byte) error {
	names := c.follow(c.names(o, "requestBody"))
	if len(body) == 0 || c.at(names...) == nil {
		return nil
	}
	schema, err := c.schema(append(slices.Clone(names), "content", "application/json", "schema")...)
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	if members, ok := v.(map[string]any); ok { // null is taken for none
		maps.DeleteFunc(members, func(_ string, v any) bool { return v == nil })
	}
	return schema.Validate(v)
}

func (c *contract) checkHeaders(response []string, header http.Header) error {
	headers, _ := c.at(append(slices.Clone(response), "headers")...).(map[string]any)
	for name := range headers {
		if header.Get(name) == "" {
			return fmt.Errorf("the header %s is missing", name)
		}
	}
	if after := header.Get("Retry-After"); after != "" {
		if n, err := strconv.Atoi(after); err != nil || n < 1 || n > 60 {
			return fmt.Errorf("Retry-After is %q", after)
		}
	}
	return nil
}

func (c *contract) checkBody(response []string, mediaType string, body []byte) error {
	content, _ := c.at(append(slices.Clone(response), "content")...).(map[string]any)
	if content == nil {
		if len(body) > 0 {
			return errors.New("there is a body")
		}
		return nil
	}
	media, _, err := mime.ParseMediaType(mediaType)
	if err != nil || content[media] == nil {
		return fmt.Errorf("the media type is %q", mediaType)
	}
	schema, err := c.schema(append(slices.Clone(response), "content", media, "schema")...)
	if err != nil {
		return err
	}
	var v any = string(body)
	if strings.HasSuffix(media, "json") {
		if v, err = jsonschema.UnmarshalJSON(bytes.NewReader(body)); err != nil {
			return err
		}
	}
	return schema.Validate(v)
}

// recorded compares everything that a test's server answers with the file, and
// fails the test at its end.
func (g *rig) recorded(next http.Handler) http.Handler {
	c, err := theContract()
	must.Succeed(g.t, err)
	var mu sync.Mutex
	var wrong []error
	g.t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, err := range wrong[:min(len(wrong), 10)] {
			g.t.Errorf("the API's description does not hold: %v", err)
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := &bytes.Buffer{}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, sent), r.Body}
		answer := &recorder{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, r)
		if g.anyRequest {
			sent.Reset()
		}
		if r.Method == http.MethodHead {
			return
		}
		if err := c.check(r.Method, r.URL, sent.Bytes(), answer.status, w.Header(), answer.body.Bytes()); err != nil {
			mu.Lock()
			defer mu.Unlock()
			wrong = append(wrong, err)
		}
	})
}

// recorder keeps the answers.
type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (w *recorder) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) Write(b []byte) (int, error) {
	w.body.Write(b)
	return w.ResponseWriter.Write(b)
}

// TestContractIsOpenAPI lints the file: it is what the specification of OpenAPI
// 3.1 says, every reference leads somewhere and every part is referred to, every
// operation has a name of its own, and every example is one.
func TestContractIsOpenAPI(t *testing.T) {
	c, err := theContract()
	must.Succeed(t, err)
	f, err := os.Open("testdata/openapi-3.1-schema.json")
	must.Succeed(t, err)
	defer f.Close()
	specification, err := jsonschema.UnmarshalJSON(f)
	must.Succeed(t, err)
	const id = "urn:openapi-specification"
	delete(specification.(map[string]any), "$id")
	compiler := jsonschema.NewCompiler()
	must.Succeed(t, compiler.AddResource(id, specification))
	schema, err := compiler.Compile(id)
	must.Succeed(t, err)
	if err := schema.Validate(c.doc); err != nil {
		t.Error(err)
	}
	ids := map[any]operation{}
	for _, o := range c.operations() {
		operationID := c.at(c.names(o, "operationId")...)
		if other, taken := ids[operationID]; operationID == nil || taken {
			t.Errorf("%v has the operationId %v, as has %v", o, operationID, other)
		}
		ids[operationID] = o
		for _, word := range []string{"summary", "tags"} {
			if c.at(c.names(o, word)...) == nil {
				t.Errorf("%v has no %s", o, word)
			}
		}
		if responses := c.statuses(o); len(responses) == 0 || responses[0] > 299 {
			t.Errorf("%v never succeeds", o)
		}
	}
	used := map[string]bool{"#/components/responses/NotFound": true, "#/components/responses/MethodNotAllowed": true}
	c.walk(t, nil, c.doc, used)
	for kind, parts := range c.at("components").(map[string]any) {
		for name := range parts.(map[string]any) {
			if ref := "#/components/" + kind + "/" + name; !used[ref] && kind != "securitySchemes" {
				t.Errorf("nothing refers to %s", ref)
			}
		}
	}
	for code, status := range problem.Codes() {
		if !slices.Contains(c.at("components", "schemas", "Code", "enum").([]any), any(string(code))) {
			t.Errorf("the code %s (%d) is not in the file", code, status)
		}
	}
	if n := len(c.at("components", "schemas", "Code", "enum").([]any)); n != len(problem.Codes()) {
		t.Errorf("the file has %d codes, and the server %d", n, len(problem.Codes()))
	}
}

// walk looks at everything below.
func (c *contract) walk(t *testing.T, names []string, v any, used map[string]bool) {
	switch v := v.(type) {
	case []any:
		for i, part := range v {
			c.walk(t, append(slices.Clone(names), strconv.Itoa(i)), part, used)
		}
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			used[ref] = true
			if c.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...) == nil {
				t.Errorf("%v refers to %s, which is not there", names, ref)
			}
		}
		if _, ok := v["schema"]; ok {
			c.checkExamples(t, names, v)
		}
		for name, part := range v {
			c.walk(t, append(slices.Clone(names), name), part, used)
		}
	}
}

// checkExamples compiles a schema and holds its examples to it.
func (c *contract) checkExamples(t *testing.T, names []string, holder map[string]any) {
	schema, err := c.schema(append(slices.Clone(names), "schema")...)
	if err != nil {
		t.Errorf("%v: %v", names, err)
		return
	}
	examples, _ := holder["examples"].(map[string]any)
	for name, e := range examples {
		if err := schema.Validate(e.(map[string]any)["value"]); err != nil {
			t.Errorf("%v: the example %s: %v", names, name, err)
		}
	}
}

// TestContractHasTheRoutes: what the server answers is in the file, and the other
// way around.
func TestContractHasTheRoutes(t *testing.T) {
	c, err := theContract()
	must.Succeed(t, err)
	g := newRig(t, nil)
	var routes, described []string
	for _, pattern := range g.server.patterns {
		if pattern != "/" { // anything else
			routes = append(routes, strings.ReplaceAll(pattern, "{$}", ""))
		}
	}
	for _, o := range c.operations() {
		described = append(described, o.String())
	}
	slices.Sort(routes)
	if !slices.Equal(routes, described) { // seed 000-7.1-1
		t.Errorf("the server has %q\nthe file has %q", routes, described)
	}
}

// TestContractSeesWhatIsWrong: the comparison can fail.
func TestContractSeesWhatIsWrong(t *testing.T) {
	c, err := theContract()
	must.Succeed(t, err)
	const lost, jsonType = `{"lost":[0]}`, "application/json"
	refusal := mustJSON(t, problem.New(problem.InvalidRequest, "no"))
	for name, test := range map[string]struct {
		method, path, sent string
		status             int
		media, body        string
		right              bool
	}{
		"right":                {"POST", "/leases/verify", `{}`, 200, jsonType, lost, true},
		"a problem":            {"POST", "/leases/verify", `x`, 400, problem.MediaType, refusal, true},
		"another status":       {"POST", "/leases/verify", `{}`, 201, jsonType, lost, false},
		"another method":       {"PUT", "/leases/verify", `{}`, 200, jsonType, lost, false},
		"another path":         {"POST", "/v2/leases", `{}`, 200, jsonType, lost, false},
		"another media type":   {"POST", "/leases/verify", `{}`, 200, "text/html", lost, false},
		"an unknown member":    {"POST", "/leases/verify", `{}`, 200, jsonType, `{"lost":[0],"more":1}`, false},
		"a missing member":     {"POST", "/leases/verify", `{}`, 200, jsonType, `{}`, false},
		"another type":         {"POST", "/leases/verify", `{}`, 200, jsonType, `{"lost":["0"]}`, false},
		"no JSON":              {"POST", "/leases/verify", `{}`, 200, jsonType, `lost`, false},
		"a body too many":      {"DELETE", "/lease/1", ``, 204, jsonType, lost, false},
		"a code elsewhere":     {"POST", "/leases/verify", ``, 400, problem.MediaType, strings.Replace(refusal, "INVALID_REQUEST", "LOCK_HELD", 1), false},
		"no Retry-After":       {"POST", "/lease", ``, 429, problem.MediaType, mustJSON(t, problem.New(problem.RateLimited, "no").After(1e9)), false},
		"a request it forbids": {"POST", "/leases/verify", `{"leases":[{}]}`, 200, jsonType, lost, false},
		"a member of a member": {"GET", "/v1/locks", ``, 200, jsonType, `{"locks":[{"secret":"x"}]}`, false},
	} {
		err := c.check(test.method, &url.URL{Path: test.path}, []byte(test.sent), test.status, http.Header{"Content-Type": {test.media}}, []byte(test.body))
		if (err == nil) != test.right {
			t.Errorf("%s: %v", name, err)
		}
	}
}
