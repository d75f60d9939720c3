package embed_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kazahana/kazahana/embed"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// A grant is logged with its machine ID, counted, and a span; requests for IDs are
// counted only.
func TestReports(t *testing.T) {
	var logged bytes.Buffer
	reader, spans := metric.NewManualReader(), tracetest.NewInMemoryExporter()
	meter := metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
	log := slog.New(slog.NewJSONHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	// Seed 003-6.2-1.
	g, err := embed.Open(t.Context(), patient(t), embed.WithLogger(log.With("program", "shop")), embed.WithMeter(meter), embed.WithTracer(tracer))
	must.Succeed(t, err)
	if _, err := g.NextIDs(t.Context(), 5); err != nil {
		t.Error(err)
	}
	ctx, parent := tracer.Start(t.Context(), "order")
	if _, err := g.NextSequence(ctx, "orders"); err != nil {
		t.Error(err)
	}
	parent.End()
	var counted metricdata.ResourceMetrics
	must.Succeed(t, reader.Collect(t.Context(), &counted))
	machineID := g.Status().Leases[0].MachineID
	if err := g.Close(); err != nil {
		t.Error(err)
	}

	lines := map[string]map[string]any{}
	for line := range bytes.Lines(logged.Bytes()) {
		var one map[string]any
		if err := json.Unmarshal(line, &one); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if one["component"] == nil || one["program"] != "shop" { // seed 003-7.1-2
			t.Errorf("%s", line)
		}
		lines[one["msg"].(string)] = one
	}
	granted, scope := lines["worker id allocated"], lines["scope of uniqueness"]
	// Seeds 003-6-1 and 003-7.1-4.
	if granted["worker_id"] != float64(machineID) || granted["level"] != "INFO" || scope["level"] != "WARN" || scope["scope"] != "host" {
		t.Errorf("%v", lines)
	}

	if n := sum(counted, "kazahana.ids.issued", "kind", "regular"); n != 5 { // seed 003-6-2
		t.Errorf("%d regular IDs", n)
	}
	if n := sum(counted, "kazahana.lease.acquires", "result", "ok"); n != 1 {
		t.Errorf("%d acquires", n)
	}
	var names []string
	for _, s := range spans.GetSpans() {
		names = append(names, s.Name)
		if s.Name == "sequence store next" && s.Parent.SpanID() != parent.SpanContext().SpanID() {
			t.Error("the span of the sequence belongs to no request")
		}
	}
	for _, want := range []string{"provider acquire", "provider release", "sequence store next"} {
		if !slices.Contains(names, want) { // seed 003-6-3
			t.Errorf("no span %q among %q", want, names)
		}
	}
}

// sum adds up the points of a counter with the attribute.
func sum(all metricdata.ResourceMetrics, name string, key attribute.Key, value string) (n int64) {
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			counter, ok := m.Data.(metricdata.Sum[int64])
			if m.Name != name || !ok {
				continue
			}
			for _, p := range counter.DataPoints {
				if v, _ := p.Attributes.Value(key); v.AsString() == value {
					n += p.Value
				}
			}
		}
	}
	return n
}
