package leaseserver

import (
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/record/memory"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
)

// To any request, the answer is a documented one, and no lease is granted twice.
func FuzzRequests(f *testing.F) {
	granted := provider.DefaultTerms().Grant(5, testNow, "secret")
	f.Add(0, "", `{"serviceId":"orders","meta":{"host":"a"},"throughputPerMs":1024,"requestId":"abc"}`)
	f.Add(0, "", `{"throughputPerMs":9223372036854775807}`)
	f.Add(0, "", `{"throughputPerMs":-1,"meta":null}`)
	f.Add(1, "5", `{"signature":"00","timestamp":1,"bitSeq":8}`)
	f.Add(1, "5?signature=00&timestamp=1&bitSeq=-1", ``)
	f.Add(1, "-9223372036854775808?timestamp=%31", `{"bitSeq":9223372036854775807}`)
	f.Add(4, "orders/42", `{"ttl_seconds":30,"request_id":"r","wait_ms":1,"owner_suffix":"a","lease_id":"00112233445566778899aabbccddeeff"}`)
	f.Add(4, "/", `{"ttl_ms":86400000,"owner_id":"anonymous/a"}`)
	f.Add(5, "k", `{"ttl_ms":100,"lease_id":null}`)
	f.Add(6, "k", `{"request_id":"r"}`)
	f.Add(7, "k", `{"count":65536,"at_least":1,"step":9223372036854775807,"start":0,"max_value":9,"on_max":"reset","ttl_ms":1000,"request_id":"r"}`)
	f.Add(8, "room/lobby", `{"owner":"a:1","membership":3,"pid":"p","version":9223372036854775807,"token":4,"snapshot":"c25hcA=="}`)
	f.Add(9, "room//", `{"owner":"a:1","membership":3,"version":1,"token":4,"snapshot":"c25hcA","keep":true}`)
	f.Add(10, "//-", ``)
	f.Add(2, "", extension(f, granted, granted.Secret))
	f.Add(3, "", verification(f, granted, granted))
	f.Fuzz(func(t *testing.T, op int, id, body string) {
		g := newRig(t, func(g *rig) {
			g.services.Default.MaxLeasesPerAcquire, g.anyRequest = 4, true
			g.keep(lock.OnRecords(memory.New(g.clock.Load)))
		})
		held := g.acquire("", "")
		if strings.ContainsAny(id, " \r\n\t#\x00\x7f") || strings.Contains(id, "..") {
			return
		}
		method, target := "POST", "/lease"
		switch op & 15 {
		case 1:
			method, target = "DELETE", "/lease/"+id
		case 2:
			target = "/leases/extend"
		case 3:
			target = "/leases/verify"
		case 4, 5, 6:
			target = "/v1/locks/" + url.PathEscape(id) + "/" + lock.Op(op&15-3).String()
		case 7:
			target = "/v1/sequences/" + url.PathEscape(id) + "/next"
		case 8, 9, 10:
			kind, identity, _ := strings.Cut(id, "/")
			target = "/v1/placements/" + url.PathEscape(kind) + "/" + url.PathEscape(identity) + []string{"/store", "/remove", ""}[op&15-8]
			if op&15 == 10 {
				method = "GET"
			}
		}
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		u, err := r.URL.Parse(target)
		if err != nil {
			return
		}
		r.Method, r.URL = method, u
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		g.server.ServeHTTP(w, r)
		switch {
		case w.Code >= 500 && w.Code != 503, w.Code == 503 && !strings.Contains(w.Body.String(), "NO_MACHINE_ID"):
			t.Errorf("%s %s %q: status %d, %s", method, target, body, w.Code, w.Body)
		case w.Code >= 400:
			var p problem.Problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || problem.Codes()[p.Code] != w.Code {
				t.Errorf("%s %s %q: status %d without its problem, %s", method, target, body, w.Code, w.Body)
			}
		case w.Code == 200 && target == "/lease":
			var out leaseapi.AcquireResponse
			if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || len(out.Leases) < 1 || len(out.Leases) > 4 {
				t.Fatalf("%q: %v, %s", body, err, w.Body)
			}
			for _, l := range out.Leases {
				if err := l.Validate(); err != nil || l.ID == held.ID {
					t.Errorf("%q gave %v: %v", body, l, err)
				}
			}
		}
	})
}
