// Package browser drives a headless Chromium in tests, by the DevTools protocol
// over a pair of pipes, of which it needs a dozen methods.
package browser

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// poll is how often a condition is looked at.
const poll = 20 * time.Millisecond

// Browser is a Chromium that was started. It does one thing at a time.
type Browser struct {
	mu   sync.Mutex // for one call and its answer; guards all below
	in   io.Writer
	from *os.File
	said *bufio.Reader // of from
	last int
	tabs map[string]*Tab // by session
}

type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// candidates are the names that the browser goes by.
var candidates = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}

// Start runs a Chromium until the end of the test, which belongs to the ring all.
func Start(t testing.TB) *Browser {
	t.Helper()
	var path string
	for _, name := range candidates {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	ring.All(t)
	if path == "" {
		path = ring.Program(t, candidates[0])
	}
	dir, err := os.MkdirTemp("", "kz-browser-")
	must.Succeed(t, err)
	toBrowser, ours := pipe(t)
	theirs, fromBrowser := pipe(t)
	args := []string{
		"--headless=new", "--remote-debugging-pipe", "--user-data-dir=" + filepath.Join(dir, "profile"), "--disable-gpu",
		"--disable-dev-shm-usage", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--disable-default-apps", "--disable-extensions", "--mute-audio", "--hide-scrollbars",
		"--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding", "--no-proxy-server", "--lang=en-GB", "about:blank",
	}
	if os.Getuid() == 0 {
		args = append(args, "--no-sandbox") // which needs another user
	}
	cmd := exec.Command(path, args...)
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // 3 and 4
	cmd.Env = append(os.Environ(), "HOME="+dir, "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with its many processes
	said, err := os.Create(filepath.Join(dir, "said"))
	must.Succeed(t, err)
	defer said.Close()
	cmd.Stderr = said
	must.Succeed(t, cmd.Start())
	_, _ = toBrowser.Close(), fromBrowser.Close()
	b := &Browser{in: ours, from: theirs, said: bufio.NewReader(theirs), tabs: map[string]*Tab{}}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		_, _ = ours.Close(), theirs.Close()
		removeAll(dir)
	})
	if err := b.call("", "Browser.getVersion", map[string]any{}, nil); err != nil {
		why, _ := os.ReadFile(said.Name())
		if bytes.Contains(why, []byte("sandbox")) {
			t.Skipf("%s finds no way to its sandbox here: run the tests as root, or allow user namespaces: %s", path, why)
		}
		t.Fatalf("%v: %s", err, why)
	}
	return b
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	must.Succeed(t, err)
	return r, w
}

// removeAll tries again for a while: a process that was killed may still be
// writing.
func removeAll(dir string) {
	for range 100 {
		if os.RemoveAll(dir) == nil {
			return
		}
		time.Sleep(poll)
	}
}

// call calls a method, and fills in result unless that is nil. Messages end with a NUL. What the
// browser tells of its tabs before the answer is noted.
func (b *Browser) call(session, method string, params, result any) error {
	text, err := json.Marshal(params)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	line, err := json.Marshal(message{ID: b.last, Session: session, Method: method, Params: text})
	if err == nil {
		_, err = b.in.Write(append(line, 0))
	}
	_ = b.from.SetReadDeadline(time.Now().Add(await.Patience))
	for err == nil {
		var m message
		if text, err = b.said.ReadBytes(0); err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		switch tab := b.tabs[m.Session]; {
		case err != nil:
		case m.ID == b.last && m.Error != nil:
			err = errors.New(m.Error.Message)
		case m.ID == b.last && result == nil:
			return nil
		case m.ID == b.last:
			return json.Unmarshal(m.Result, result)
		case tab != nil:
			tab.note(m.Method, m.Params)
		}
	}
	return fmt.Errorf("%s: %w", method, err)
}

// View is what a tab's page is told of its window.
type View struct {
	Width, Height int
	Dark          bool
	Mobile        bool    // a phone, which has no mouse
	Scale         float64 // pixels of a picture per pixel of the page; 0 means 1
	NoScript      bool
}

// Tab is a page that is open. It remembers what went wrong in it.
type Tab struct {
	t       testing.TB
	b       *Browser
	session string

	problems []string // these are guarded by the browser's mu
	asked    []string // URLs
}

// Open opens the URL in a new tab, of the test.
func (b *Browser) Open(t testing.TB, url string, v View) *Tab {
	t.Helper()
	var target struct {
		ID string `json:"targetId"`
	}
	var attached struct {
		ID string `json:"sessionId"`
	}
	must.Succeed(t, b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target))
	must.Succeed(t, b.call("", "Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &attached))
	tab := &Tab{t: t, b: b, session: attached.ID}
	t.Cleanup(func() { _ = b.call("", "Target.closeTarget", map[string]any{"targetId": target.ID}, nil) })
	b.mu.Lock()
	b.tabs[tab.session] = tab
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		tab.Call(domain+".enable", map[string]any{}, nil)
	}
	tab.Call("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil) // else one tab only has it
	tab.Look(v)
	if v.NoScript {
		tab.Call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	}
	tab.Call("Page.navigate", map[string]any{"url": url}, nil)
	return tab
}

// Look changes the window.
func (tab *Tab) Look(v View) {
	tab.t.Helper()
	scheme := map[bool]string{false: "light", true: "dark"}[v.Dark]
	tab.Call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	tab.Call("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": v.Width, "height": v.Height, "deviceScaleFactor": max(v.Scale, 1), "mobile": v.Mobile,
	}, nil)
	tab.Call("Emulation.setTouchEmulationEnabled", map[string]any{"enabled": v.Mobile}, nil)
}

// Call calls a method of the protocol on the tab.
func (tab *Tab) Call(method string, params, result any) {
	tab.t.Helper()
	must.Succeed(tab.t, tab.b.call(tab.session, method, params, result))
}

// note remembers what a test may want to know. The browser is locked.
func (tab *Tab) note(method string, params json.RawMessage) {
	var p struct {
		Request struct{ URL string }
		Entry   struct{ Level, Text, URL string }
	}
	_ = json.Unmarshal(params, &p)
	switch method {
	case "Network.requestWillBeSent":
		tab.asked = append(tab.asked, p.Request.URL)
	case "Log.entryAdded":
		tab.problems = append(tab.problems, fmt.Sprintf("%s: %s %s", p.Entry.Level, p.Entry.Text, p.Entry.URL))
	case "Runtime.consoleAPICalled":
		tab.problems = append(tab.problems, fmt.Sprintf("console: %s", params))
	case "Runtime.exceptionThrown":
		tab.problems = append(tab.problems, "exception: "+string(params))
	}
}

// Problems returns the console's messages and thrown errors since its last call.
func (tab *Tab) Problems() []string {
	_ = tab.eval("0", nil) // what comes before its answer is noted
	tab.b.mu.Lock()
	defer tab.b.mu.Unlock()
	problems := tab.problems
	tab.problems = nil
	return problems
}

// Asked are the URLs that the tab has asked for.
func (tab *Tab) Asked() []string {
	_ = tab.eval("0", nil)
	tab.b.mu.Lock()
	defer tab.b.mu.Unlock()
	return slices.Clone(tab.asked)
}

// Eval evaluates an expression, of which it awaits a promise's end, and fills in
// its value unless that is nil.
func (tab *Tab) Eval(expression string, into any) {
	tab.t.Helper()
	must.Succeed(tab.t, tab.eval(expression, into))
}

func (tab *Tab) eval(expression string, into any) error {
	var out struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	if err := tab.b.call(tab.session, "Runtime.evaluate", map[string]any{
		"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true,
	}, &out); err != nil {
		return err
	}
	if out.Exception != nil {
		return fmt.Errorf("%s: %s %s", expression, out.Exception.Text, out.Exception.Exception.Description)
	}
	if into == nil || out.Result.Value == nil {
		return nil
	}
	return json.Unmarshal(out.Result.Value, into)
}

// Text is what a person reads in the first element that the selector finds.
func (tab *Tab) Text(selector string) (text string) {
	tab.t.Helper()
	tab.Eval(fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector), &text)
	return text
}

// Await waits until the expression is true.
func (tab *Tab) Await(expression string) {
	tab.t.Helper()
	deadline := time.Now().Add(await.Patience)
	for {
		var ok bool
		err := tab.eval("Boolean("+expression+")", &ok)
		if ok {
			return
		}
		if time.Now().After(deadline) {
			var text string
			_ = tab.eval("document.body.innerText", &text)
			tab.t.Fatalf("not within %v: %s (%v)\nproblems: %q\nthe page says:\n%s", await.Patience, expression, err, tab.Problems(), text)
		}
		time.Sleep(poll)
	}
}

// Point moves the mouse to the place; Click clicks there.
func (tab *Tab) Point(x, y float64) { tab.t.Helper(); tab.mouse("mouseMoved", x, y, 0) }

// Click clicks at the place.
func (tab *Tab) Click(x, y float64) {
	tab.t.Helper()
	tab.Point(x, y)
	tab.mouse("mousePressed", x, y, 1)
	tab.mouse("mouseReleased", x, y, 1)
}

// Tap touches the place with a finger, in a view that is Mobile.
func (tab *Tab) Tap(x, y float64) {
	tab.t.Helper()
	touch := func(kind string, points ...map[string]float64) {
		tab.t.Helper()
		tab.Call("Input.dispatchTouchEvent", map[string]any{"type": kind, "touchPoints": append([]map[string]float64{}, points...)}, nil)
	}
	touch("touchStart", map[string]float64{"x": x, "y": y})
	touch("touchEnd")
}

func (tab *Tab) mouse(kind string, x, y float64, clicks int) {
	tab.t.Helper()
	button := map[int]string{0: "none", 1: "left"}[clicks]
	tab.Call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": x, "y": y, "button": button, "clickCount": clicks}, nil)
}

// Type types text into what has the focus, and Press presses one key by its name.
func (tab *Tab) Type(text string) {
	tab.t.Helper()
	tab.Call("Input.insertText", map[string]any{"text": text}, nil)
}

// Press presses a key: Enter, Tab, ArrowRight, ...
func (tab *Tab) Press(key string) {
	tab.t.Helper()
	codes := map[string]int{"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36}
	p := map[string]any{"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
	if key == "Enter" {
		p["text"] = "\r"
	}
	tab.Call("Input.dispatchKeyEvent", p, nil)
	tab.Call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": codes[key]}, nil)
}

// Picture is the whole page as a PNG, or its first height pixels unless that is 0.
func (tab *Tab) Picture(height int) []byte {
	tab.t.Helper()
	var size struct{ W, H int }
	tab.Eval(`({W: document.documentElement.clientWidth, H: document.documentElement.scrollHeight})`, &size)
	if height > 0 {
		size.H = min(size.H, height)
	}
	var out struct {
		Data []byte `json:"data"`
	}
	tab.Call("Page.captureScreenshot", map[string]any{
		"format": "png", "captureBeyondViewport": true, "clip": map[string]any{"x": 0, "y": 0, "width": size.W, "height": size.H, "scale": 1},
	}, &out)
	return out.Data
}
