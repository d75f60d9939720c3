package sqlitefile

import (
	"strings"
	"testing"
)

// A file's URL leads back to the file, with any bytes in its path.
func TestURL(t *testing.T) {
	for _, path := range []string{"/a.db", "/with space/a.db", "/100%/a?b#c&d=e@f:g.db", "/l\u00e4/a.db", "/a%20b.db"} {
		got, query, err := ParseURL(URL(path)+"?ids=0-3", "")
		if got != path || query != "ids=0-3" || err != nil {
			t.Errorf("%s became %s, then %q, %q, %v", path, URL(path), got, query, err)
		}
	}
}

func TestParseURL(t *testing.T) {
	for url, want := range map[string]string{
		"sqlite:/x/a.db":                "/x/a.db",
		"sqlite:///x/a.db":              "/x/a.db",
		"SQLITE:/x/a.db":                "/x/a.db",
		"sqlite:/x//y/../a.db?term=5m":  "/x/a.db",
		"sqlite:/x/with space.db":       "/x/with space.db",
		"sqlite:/x/with%20space.db?a=b": "/x/with space.db",
		"sqlite:/x/a%3Fb%25.db":         "/x/a?b%.db",
	} {
		if got, _, err := ParseURL(url, ""); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", url, got, err, want)
		}
	}
	for url, want := range map[string]string{
		"sqlite:x.db":                     "relative path",
		"sqlite://host/x.db":              "relative path",
		"sqlite:":                         "for example sqlite:/e.db",
		"sqlite:/":                        "for example sqlite:/e.db",
		"sqlite:/a#b.db":                  "percent-encoded",
		"sqlite:/a%zz.db":                 "percent-encoded",
		"sqlite://user:hunter2@host/x":    "percent-encoded",
		"redis://user:hunter2@host:1/0":   "percent-encoded",
		"etcd://a:1,b:2?password=hunter2": "percent-encoded",
	} {
		if _, _, err := ParseURL(url, "/e.db"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}
