// Package otlptest is a collector of OpenTelemetry traces for tests: it takes what an
// exporter sends by OTLP over HTTP, and keeps it.
package otlptest

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a received span.
type Span struct {
	Name                  string
	Kind                  trace.Span_SpanKind
	TraceID, ID, ParentID string // hex; ParentID is empty for the first of a trace
	Attributes            map[string]string
	Resource              map[string]string
	Error                 bool
	Message               string // of the status
	Took                  time.Duration
}

// Collector receives spans.
type Collector struct {
	HTTP string // its endpoint, as OTEL_EXPORTER_OTLP_ENDPOINT has it

	mu    sync.Mutex
	spans []Span
}

// New runs a collector until the test ends.
func New(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	web := httptest.NewServer(http.HandlerFunc(c.post))
	t.Cleanup(web.Close)
	c.HTTP = web.URL
	return c
}

func (c *Collector) post(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, fmt.Sprintf("%s %s of %s", r.Method, r.URL.Path, r.Header.Get("Content-Type")), http.StatusBadRequest)
		return
	}
	raw, err := io.ReadAll(r.Body)
	var message collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(raw, &message)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.take(&message)
	answer, _ := proto.Marshal(&collector.ExportTraceServiceResponse{})
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(answer)
}

func (c *Collector) take(message *collector.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, from := range message.GetResourceSpans() {
		resource := texts(from.GetResource().GetAttributes())
		for _, scope := range from.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, Span{
					Name: s.GetName(), Kind: s.GetKind(),
					TraceID: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), ParentID: hex.EncodeToString(s.GetParentSpanId()),
					Attributes: texts(s.GetAttributes()), Resource: resource,
					Error: s.GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR, Message: s.GetStatus().GetMessage(),
					Took: time.Duration(s.GetEndTimeUnixNano() - s.GetStartTimeUnixNano()),
				})
			}
		}
	}
}

func texts(all []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range all {
		switch v := kv.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			m[kv.GetKey()] = v.StringValue
		case *common.AnyValue_IntValue:
			m[kv.GetKey()] = fmt.Sprint(v.IntValue)
		default:
			m[kv.GetKey()] = kv.GetValue().String()
		}
	}
	return m
}

// Spans are those received so far, in the order of their arrival.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}
