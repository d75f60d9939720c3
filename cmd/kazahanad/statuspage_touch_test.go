package main

import (
	"fmt"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/browser"
)

// tapOn touches the middle of the first element that the selector finds.
func tapOn(tab *browser.Tab, selector string) {
	var at struct{ X, Y float64 }
	tab.Eval(fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.scrollIntoView({block: "center"});
		const r = e.getBoundingClientRect();
		return {X: r.x + r.width / 2, Y: r.y + r.height / 2};
	})()`, selector), &at)
	tab.Tap(at.X, at.Y)
}

// tapSlot touches the cell with the machine ID, of the pool of so many from there on, until
// a cell is one machine ID. No cell is too small for a finger.
func tapSlot(tab *browser.Tab, id, from, ids int64) {
	const cells = 256
	for {
		each := max(ids/cells, 1)
		shown := map[bool]string{true: fmt.Sprintf(", %s in each cell", grouped(each)), false: ""}[each > 1]
		tab.Await(fmt.Sprintf(`document.querySelector("#trail .quiet").innerText.replace(/^machine IDs /, "").replace(/: click.*/, "") === %q`,
			fmt.Sprintf("%s to %s%s", grouped(from), grouped(from+ids-1), shown)))
		tab.Await(`document.querySelector("#map").clientWidth * document.querySelector("#map").clientHeight >= ` + fmt.Sprint(16*16*min(ids, cells)))
		x, y := cellOf(tab, (id-from)/each, 0, min(ids, cells))
		tab.Tap(x, y)
		if each == 1 {
			return
		}
		from, ids = from+(id-from)/each*each, each
	}
}

// grouped is the number as the page shows it.
func grouped(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// overlapped are the elements of the card that the ring of what has the focus covers.
const overlapped = `(() => {
	const field = document.activeElement;
	const style = getComputedStyle(field);
	if (style.outlineStyle === "none") return ["there is no ring"];
	const wide = parseFloat(style.outlineWidth) + parseFloat(style.outlineOffset);
	const ring = field.getBoundingClientRect();
	return [...document.querySelectorAll("#token h2, #token p, #token button, #token input")].filter((e) => {
		const r = e.getBoundingClientRect();
		return e !== field && r.width * r.height > 0 && r.left < ring.right + wide && r.right > ring.left - wide && r.top < ring.bottom + wide && r.bottom > ring.top - wide;
	}).map((e) => e.innerText);
})()`

// A finger does on a phone what the mouse does on a desk: it gives the token, tells the holder of
// a slot, looks into a part of a large pool and comes back, and searches.
func lookByTouch(t *testing.T, b *browser.Browser) {
	s := newSite(t)
	server := s.startPageServer("127.0.0.1:0")
	web := granted(server, "", "web-01.example.net", 20)[7]
	wide := granted(server, "wide", "wide-01.example.net", 1)[0]
	tab := b.Open(t, server.URL()+"/", browser.View{Width: 400, Height: 800, Mobile: true})
	giveToken(tab, hostToken)
	tab.Await(`document.querySelector("#token-why").innerText.includes('does not have the scope "admin"')`)
	for _, v := range []browser.View{{Width: 360, Height: 780, Mobile: true}, desk, {Width: 400, Height: 800, Mobile: true}} {
		tab.Look(v)
		var covers []string
		if tab.Eval(overlapped, &covers); len(covers) > 0 {
			t.Errorf("%+v: the ring of the field for the token covers %q", v, covers)
		}
	}
	tab.Eval(`window.touches = 0, addEventListener("click", (event) => touches += event.pointerType === "touch" ? 1 : -1000, true)`, nil)
	tapOn(tab, "#token-text")
	tab.Type(adminToken)
	tapOn(tab, "#token-form button")
	tab.Await(`document.querySelector("#main:not([hidden])") && document.querySelector("#map-title").innerText === "Slots of pool default"`)

	tab.Await(`document.querySelector('#pools tr[data-key="default"] td:nth-child(3)').innerText === "20"`)
	tab.Await(detail + `.startsWith("Point at a slot, or tap it")`)
	tapSlot(tab, web.ID, 0, 8192)
	tab.Await(fmt.Sprintf(`%s.startsWith("Machine ID %d: leased to web-01.example.net")`, detail, web.ID))
	tapOn(tab, `#pools tr[data-key="wide"] button`)
	tab.Await(`document.querySelector("#map-title").innerText === "Slots of pool wide"`)
	tapSlot(tab, wide.ID, 0, 1<<20)
	tab.Await(fmt.Sprintf(`%s.startsWith("Machine ID %d: leased to wide-01.example.net")`, detail, wide.ID))
	tapOn(tab, "#trail button")
	tab.Await(`document.querySelector("#trail").innerText.includes("4,096 in each cell")`)

	tab.Eval(`document.querySelector("#search-what").value = "machine"`, nil)
	tapOn(tab, "#search-text")
	tab.Await(`document.activeElement === document.querySelector("#search-text")`)
	tab.Type(fmt.Sprint(wide.ID))
	tapOn(tab, "#search-form button")
	tab.Await(`document.querySelector("#search-answer").innerText.includes("wide-01.example.net")`)
	tapOn(tab, "#search-answer button")
	tab.Await(detail + `.includes("wide-01.example.net")`)
	var touches int
	if tab.Eval(`touches`, &touches); touches < 10 {
		t.Errorf("%d touches", touches)
	}
	clean(t, tab, server.URL(), "status of 401", "status of 403")
}
