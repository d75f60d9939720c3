package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/caller"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/browser"
)

// The daemon's page shows placement where it is on. Kinds, identities and reasons
// come from processes, and are text.
func lookAtPlacement(t *testing.T, b *browser.Browser) {
	const (
		kind     = `<img src=x onerror=document.title="xss">`
		identity = "<script>document.title=\"xss\"</script>&amp;\ue000"
		reason   = `"></p><img src=x onerror=document.title="xss">`
	)
	s := newSite(t)
	address := testkit.FreeAddress(t)
	s.Start("--admin-listen", address, "--placement-authority", "here.example:1")
	client := caller.New(s.Socket, await.Patience)
	defer client.Close()
	tab := b.Open(t, "http://"+address+"/", desk)
	tab.Await(`document.querySelector("#placement-state")?.innerText === "member"`)
	tab.Await(`document.querySelector("#placement-members").innerText.startsWith("here.example:1 token") && document.querySelector("#placement-members b").innerText.includes("this host")`)
	tab.Await(`!document.querySelector("#no-kinds").hidden && !document.querySelector("#no-placed").hidden`)

	register(t, s.Socket, []string{kind, "room"}, func(kind string) (pid, refusal string) {
		if kind == "room" {
			return "", reason
		}
		return "p-1", ""
	})
	if _, err := resolve(t.Context(), client, kind, identity); err != nil {
		t.Fatal(err)
	}
	if _, err := resolve(t.Context(), client, "room", "7"); err == nil {
		t.Fatal("what refuses is activated")
	}
	tab.Await(fmt.Sprintf(`document.querySelector("#placement-kinds tr:first-child").innerText.replace(/\s+/g, " ").trim() === %q`, kind+" 1 1"))
	tab.Await(`document.querySelectorAll("#placement-kinds tr").length === 2 && document.querySelectorAll("#placed li").length === 2`)
	for selector, want := range map[string]string{
		"#placed li:last-child bdi":             kind + "/" + identity,
		"#placed li:last-child .level":          "activated",
		"#placed li:first-child .level":         "failed",
		"#placed li:first-child .details":       `"></p><img src=x onerror=`,
		"#placement-facts dd:last-child":        "1",
		"#placement-facts dd:nth-of-type(2)":    "here.example:1",
		"#placement-members li:first-child bdi": "here.example:1",
	} {
		if text := tab.Text(selector); !strings.Contains(text, want) {
			t.Errorf("%s says %q, want %q in it", selector, text, want)
		}
	}
	onlyText(t, tab)
	readable(t, tab)
	clean(t, tab, "http://"+address)
}
