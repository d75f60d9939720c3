package validate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

// Every query of the dashboards is one that Prometheus understands.
func TestDashboards(t *testing.T) {
	variables := strings.NewReplacer("$__rate_interval", "5m", "$__interval", "15s")
	files, err := filepath.Glob("../grafana/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var dashboard struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
			Annotations struct{ List []struct{ Expr string } }
		}
		if err := json.Unmarshal(text, &dashboard); err != nil {
			t.Fatal(err)
		}
		var queries []string
		for _, panel := range dashboard.Panels {
			for _, target := range panel.Targets {
				queries = append(queries, target.Expr)
			}
		}
		for _, annotation := range dashboard.Annotations.List {
			queries = append(queries, annotation.Expr)
		}
		for _, query := range queries {
			if _, err := parser.ParseExpr(variables.Replace(query)); err != nil {
				t.Errorf("%s: %s: %v", file, query, err)
			}
		}
	}
}
