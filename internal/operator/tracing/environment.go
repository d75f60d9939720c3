package tracing

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// The supported protocols of OTLP.
const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
)

// insecure are variables for endpoints without a scheme.
var insecure = []string{"OTEL_EXPORTER_OTLP_INSECURE", "OTEL_EXPORTER_OTLP_TRACES_INSECURE"}

// environment are the OTEL_* variables that this package reads; the library reads
// the others.
type environment struct {
	enabled  bool
	protocol string
	place    string   // of the collector, without secrets
	warnings []string // about variables that are ignored, without their values where these may be secret
}

// readEnvironment reads the variables that concern traces. As the standard demands,
// an invalid value is a warning and otherwise ignored: these variables are often set
// for a whole fleet.
func readEnvironment(get func(string) string) environment {
	r := &environmentReader{get: func(name string) string { return strings.TrimSpace(get(name)) }}
	endpoint := cmp.Or(r.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), r.get("OTEL_EXPORTER_OTLP_ENDPOINT"))
	exporters := r.list("OTEL_TRACES_EXPORTER", "otlp", "none")
	if r.flag("OTEL_SDK_DISABLED") || endpoint == "" || slices.Contains(exporters, "none") {
		return environment{warnings: r.warnings}
	}
	env := environment{protocol: protocolHTTP}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"} {
		env.protocol = cmp.Or(r.word(name, protocolGRPC, protocolHTTP), env.protocol)
	}
	env.enabled, env.place = r.endpoint(endpoint), place(endpoint)
	env.warnings = r.warnings
	return env
}

type environmentReader struct {
	get      func(string) string
	warnings []string
}

func (r *environmentReader) warn(name, format string, args ...any) {
	r.warnings = append(r.warnings, name+" is ignored: "+fmt.Sprintf(format, args...))
}

// endpoint reports whether the text can be the URL of a collector.
func (r *environmentReader) endpoint(text string) bool {
	u, err := url.Parse(text)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		return true
	}
	r.warnings = append(r.warnings, "no traces are sent: the endpoint in OTEL_EXPORTER_OTLP_ENDPOINT or "+
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is a URL like http://localhost:4318, or for grpc http://localhost:4317")
	return false
}

// flag reads a boolean.
func (r *environmentReader) flag(name string) bool {
	switch text := strings.ToLower(r.get(name)); text {
	case "true":
		return true
	case "", "false":
	default:
		r.warn(name, "%q is neither true nor false", text)
	}
	return false
}

// word reads one of the known words; "" for any other.
func (r *environmentReader) word(name string, known ...string) string {
	text := r.get(name)
	if text == "" || slices.Contains(known, text) {
		return text
	}
	r.warn(name, "there is no %q here, but %s", text, strings.Join(known, ", "))
	return ""
}

// list reads known words, separated by commas.
func (r *environmentReader) list(name string, known ...string) (all []string) {
	for text := range strings.SplitSeq(r.get(name), ",") {
		if text = strings.TrimSpace(text); slices.Contains(known, text) {
			all = append(all, text)
		} else if text != "" {
			r.warn(name, "there is no %q here, but %s", text, strings.Join(known, ", "))
		}
	}
	return all
}
