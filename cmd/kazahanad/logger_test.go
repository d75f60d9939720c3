package main

import (
	"bytes"
	"encoding/json"
	stdlog "log"
	"testing"

	"github.com/kazahana/kazahana/internal/operator/config"
)

// What libraries write to the standard library's log becomes lines of this log,
// for it would otherwise wait for stderr by itself.
func TestStandardLogIsTaken(t *testing.T) {
	before, flags := stdlog.Writer(), stdlog.Flags()
	t.Cleanup(func() {
		stdlog.SetOutput(before)
		stdlog.SetFlags(flags)
	})
	var out bytes.Buffer
	s := &system{err: &out}
	if _, err := newLogger("info", config.LogJSON, s); err != nil {
		t.Fatal(err)
	}
	stdlog.Printf("http: panic serving %s", "somebody")
	var line map[string]string
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if line["level"] != "warn" || line["component"] != "log" || line["msg"] != "a library reports" || line["said"] != "http: panic serving somebody" {
		t.Errorf("the line is %v", line)
	}
}
