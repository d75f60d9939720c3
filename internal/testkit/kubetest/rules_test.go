package kubetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestMain(m *testing.M) { await.Main(m) }

// side is an API server that is asked for the rules.
type side struct {
	*testing.T
	path string // of the leases
	ask  func(method, path string, body any) (int, []byte, error)
}

// lease is what the rules look at.
type lease struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name            string            `json:"name"`
		UID             string            `json:"uid,omitempty"`
		ResourceVersion string            `json:"resourceVersion,omitempty"`
		Labels          map[string]string `json:"labels,omitempty"`
	} `json:"metadata"`
	Spec struct {
		LeaseDurationSeconds *int   `json:"leaseDurationSeconds,omitempty"`
		HolderIdentity       string `json:"holderIdentity,omitempty"`
	} `json:"spec"`
}

func named(name, holder string) *lease {
	l := &lease{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	l.Metadata.Name, l.Spec.HolderIdentity = name, holder
	return l
}

// does asks, and checks the answer: "201", or "409 Conflict" with the reason.
func (s *side) does(want, method, name string, body any) *lease {
	s.Helper()
	path := s.path
	if name != "" {
		path += "/" + name
	}
	status, text, err := s.ask(method, path, body)
	must.Succeed(s, err)
	var answer struct {
		lease
		Reason string `json:"reason"`
	}
	_ = json.Unmarshal(text, &answer)
	if got := strings.TrimSpace(fmt.Sprint(status, " ", answer.Reason)); got != want {
		s.Errorf("%s %s is answered with %s, want %s: %s", method, name, got, want, text)
	}
	return &answer.lease
}

// rules are what the provider rests on.
func rules(s *side) {
	const get, post, put, remove = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
	s.does("404 NotFound", get, "a", nil)
	first := s.does("201", post, "", named("a", "x"))
	s.does("409 AlreadyExists", post, "", named("a", "y"))
	if same := s.does("200", put, "a", first); same.Metadata.ResourceVersion != first.Metadata.ResourceVersion {
		s.Errorf("an update that changes nothing changes the version")
	}
	change := *first
	change.Spec.HolderIdentity = "y"
	second := s.does("200", put, "a", change)
	if second.Metadata.ResourceVersion == first.Metadata.ResourceVersion || second.Metadata.UID != first.Metadata.UID {
		s.Errorf("after an update the object is %+v, before it %+v", second, first)
	}
	s.does("409 Conflict", put, "a", first)
	foreign := *second
	foreign.Metadata.UID = "11111111-2222-3333-4444-555555555555"
	s.does("409 Conflict", put, "a", foreign)
	unversioned := *second
	unversioned.Metadata.ResourceVersion = ""
	s.does("422 Invalid", put, "a", unversioned)
	s.does("400 BadRequest", put, "b", second)
	negative, zero := named("c", ""), 0
	negative.Spec.LeaseDurationSeconds = &zero
	s.does("422 Invalid", post, "", negative)
	mislabelled := named("c", "")
	mislabelled.Metadata.Labels = map[string]string{"a/b": "not a label"}
	s.does("422 Invalid", post, "", mislabelled)
	s.does("422 Invalid", post, "", named("No_Name", ""))

	s.does("200", remove, "a", nil)
	s.does("409 Conflict", put, "a", second)
	without := *second
	without.Metadata.UID = ""
	if third := s.does("201", put, "a", without); third.Metadata.UID == second.Metadata.UID {
		s.Errorf("an object that was made anew has the uid of the one before")
	}
	s.pages()
}

// pages lists five objects, of which three have a label.
func (s *side) pages() {
	s.Helper()
	for i := range 4 {
		l := named(fmt.Sprint("p", i), "")
		if i > 0 {
			l.Metadata.Labels = map[string]string{"pool": "p"}
		}
		s.does("201", http.MethodPost, "", l)
	}
	list := func(query string) (names []string, next string) {
		s.Helper()
		status, text, err := s.ask(http.MethodGet, s.path+"?"+query, nil)
		must.Succeed(s, err)
		var page struct {
			Metadata struct{ Continue string }
			Items    []lease
		}
		must.Succeed(s, json.Unmarshal(text, &page))
		if status != http.StatusOK {
			s.Errorf("%s: HTTP %d: %s", query, status, text)
		}
		for _, l := range page.Items {
			names = append(names, l.Metadata.Name)
		}
		return names, page.Metadata.Continue
	}
	var all []string
	next, pages := "", 0
	for pages < 10 {
		names, after := list("limit=2&continue=" + next)
		all = append(all, names...)
		if next, pages = after, pages+1; next == "" {
			break
		}
	}
	if got := strings.Join(all, " "); got != "a p0 p1 p2 p3" || pages != 3 {
		s.Errorf("%d pages have %s", pages, got)
	}
	if names, next := list("labelSelector=pool%3Dp"); strings.Join(names, " ") != "p1 p2 p3" || next != "" {
		s.Errorf("the label selects %v", names)
	}
	if names, _ := list("labelSelector=pool+in+(p,q)&limit=500"); len(names) != 3 {
		s.Errorf("the set selects %v", names)
	}
	await.Eventually(s, "the cache shows all, on one page", func() bool {
		names, next := list("limit=2&resourceVersion=0")
		return len(names) == 5 && next == ""
	})
	s.does("404 NotFound", http.MethodGet, "p9", nil)
}

func TestRulesOfTheSmallServer(t *testing.T) {
	small := NewServer(t, nil)
	rules(&side{T: t, path: root + Namespace + "/leases", ask: func(method, path string, body any) (int, []byte, error) {
		return do(small.tls.Client(), small.tls.URL, method, path, adminToken, body)
	}})
	small.Allow("reader", "get")
	refused(t, root+Namespace+"/leases/a", "reader", func(method, path, token string, body any) (int, []byte, error) {
		return do(small.tls.Client(), small.tls.URL, method, path, token, body)
	})
}

// The real server has the rules that the small one keeps.
func TestRulesOfTheRealServer(t *testing.T) {
	ring.Deep(t)
	r := StartReal(t)
	namespace, _ := r.Tenant()
	rules(&side{T: t, path: root + namespace + "/leases", ask: func(method, path string, body any) (int, []byte, error) {
		return r.Do(method, path, adminToken, body)
	}})
	namespace, reader := r.Tenant()
	r.Forbid(namespace, "list", "create", "update")
	refused(t, root+namespace+"/leases/a", reader, r.Do)
}

// refused tries what a token that may only read may not, and an unknown one.
func refused(t *testing.T, path, reader string, ask func(method, path, token string, body any) (int, []byte, error)) {
	t.Helper()
	for _, c := range []struct {
		method, token string
		want          int
	}{
		{http.MethodPut, reader, http.StatusForbidden}, {http.MethodDelete, reader, http.StatusForbidden}, {http.MethodGet, "unknown", http.StatusUnauthorized},
	} {
		status, text, err := ask(c.method, path, c.token, named("a", ""))
		if err != nil || status != c.want {
			t.Errorf("%s with %.8s is answered with %d, want %d: %s, %v", c.method, c.token, status, c.want, text, err)
		}
	}
}
