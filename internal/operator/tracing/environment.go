package tracing

import (
	"cmp"
	"errors"
	"net/url"
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
	place    string // of the collector, without secrets
}

// readEnvironment reads the variables that concern traces. As the standard demands, an invalid
// value is ignored: these variables are often set for a whole fleet.
func readEnvironment(lookup func(string) string) (environment, error) {
	get := func(name string) string { return strings.TrimSpace(lookup(name)) }
	endpoint := cmp.Or(get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), get("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if endpoint == "" || strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") || strings.Contains(get("OTEL_TRACES_EXPORTER"), "none") {
		return environment{}, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return environment{}, errors.New("no traces are sent: the endpoint in OTEL_EXPORTER_OTLP_ENDPOINT or " +
			"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is a URL like http://localhost:4318, or for grpc http://localhost:4317")
	}
	env := environment{enabled: true, protocol: protocolHTTP, place: u.Scheme + "://" + u.Host + u.Path}
	if cmp.Or(get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), get("OTEL_EXPORTER_OTLP_PROTOCOL")) == protocolGRPC {
		env.protocol = protocolGRPC
	}
	return env, nil
}
