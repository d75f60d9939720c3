package statuspage

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
)

//go:embed assets/*.html assets/*.css assets/*.js
var assets embed.FS

// Daemon serves the daemon's page, which reads status.json beside it.
var Daemon = sync.OnceValue(func() http.Handler { return newPage("daemon") })

// LeaseServer serves the lease server's page, which reads status.json and the API.
var LeaseServer = sync.OnceValue(func() http.Handler { return newPage("leaseserver") })

// page is one HTML document.
type page struct {
	html   []byte
	policy string
}

// The marks in an HTML file that style and script replace.
const (
	styleMark  = "/* style */"
	scriptMark = "/* script */"
)

// newPage joins the page's files. They are embedded, so an error in them is a broken
// build and panics.
func newPage(name string) *page {
	style := read("base.css") + read(name+".css")
	script := bundle(name+".js", map[string]bool{})
	html := read(name + ".html")
	for mark, text := range map[string]string{styleMark: style, scriptMark: script} {
		if strings.Count(html, mark) != 1 {
			panic(fmt.Sprintf("statuspage: %s.html must have one %s", name, mark))
		}
		html = strings.Replace(html, mark, text, 1)
	}
	return &page{html: []byte(html), policy: strings.Join([]string{
		"default-src 'none'", "script-src " + hash(script), "style-src " + hash(style), "connect-src 'self'", "img-src data:",
		"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
	}, "; ")}
}

func read(name string) string {
	b, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic("statuspage: " + err.Error())
	}
	return string(b)
}

// hash is an inline script's or style's name in a content security policy.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

var (
	moduleImport = regexp.MustCompile(`(?m)^import \{[^}]*\} from '\./([a-z]+\.js)';\n`)
	moduleExport = regexp.MustCompile(`(?m)^export `)
)

// bundle returns the module, preceded by its imports. All modules share one scope, so
// two declarations of a name are a syntax error.
func bundle(name string, done map[string]bool) string {
	if done[name] {
		return ""
	}
	done[name] = true
	text := read(name)
	var before []string
	for _, m := range moduleImport.FindAllStringSubmatch(text, -1) {
		before = append(before, bundle(m[1], done))
	}
	text = moduleExport.ReplaceAllString(moduleImport.ReplaceAllString(text, ""), "")
	return strings.Join(slices.Concat(before, []string{text}), "")
}

// ServeHTTP implements http.Handler.
func (p *page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", p.policy)
	h.Set("Cache-Control", "no-store") // the page and its data come from one version
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	_, _ = w.Write(p.html) // an error means that the peer has gone
}
