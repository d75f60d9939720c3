package kubetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Limits that the real server has.
const (
	maxBody        = 3 << 20
	maxAnnotations = 256 << 10
)

// read reads an object that is to be written, and holds it to the rules.
func (s *Server) read(w http.ResponseWriter, r *http.Request) (*coordinationv1.Lease, bool) {
	object := &coordinationv1.Lease{}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(object); err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return nil, false
	}
	if object.Kind != "Lease" || object.APIVersion != "coordination.k8s.io/v1" {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "the object is no Lease of coordination.k8s.io/v1")
		return nil, false
	}
	if object.Namespace != "" && object.Namespace != Namespace {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "the namespace of the provided object does not match the namespace sent on the request")
		return nil, false
	}
	if wrong := invalid(object); wrong != "" {
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, fmt.Sprintf("Lease.coordination.k8s.io %q is invalid: %s", object.Name, wrong))
		return nil, false
	}
	return object, true
}

// invalid says what the API does not allow in a Lease; "" for nothing.
func invalid(l *coordinationv1.Lease) string {
	if wrong := validation.IsDNS1123Subdomain(l.Name); len(wrong) > 0 {
		return "metadata.name: " + wrong[0]
	}
	size := 0
	for name, value := range l.Annotations {
		size += len(name) + len(value)
		if wrong := validation.IsQualifiedName(name); len(wrong) > 0 {
			return "metadata.annotations: " + wrong[0]
		}
	}
	if size > maxAnnotations {
		return "metadata.annotations: Too long"
	}
	for name, value := range l.Labels {
		if wrong := append(validation.IsQualifiedName(name), validation.IsValidLabelValue(value)...); len(wrong) > 0 {
			return "metadata.labels: " + wrong[0]
		}
	}
	if d := l.Spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		return "spec.leaseDurationSeconds: must be greater than 0"
	}
	if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
		return "spec.leaseTransitions: must be greater than or equal to 0"
	}
	return ""
}

// list answers with a page. The pages of one list show the state at its beginning. A list from
// the cache has one page, with any limit.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	state := s.state
	fromCache := q.Get("resourceVersion") == "0"
	if fromCache && s.cached != nil {
		state = *s.cached
	}
	selector, err := labels.Parse(q.Get("labelSelector"))
	limit, limitErr := strconv.Atoi(q.Get("limit"))
	if err != nil || limitErr != nil && q.Has("limit") {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "the selector or the limit is malformed")
		return
	}
	var all []coordinationv1.Lease
	if token := q.Get("continue"); token != "" {
		rest, known := s.pages[token]
		if !known {
			refuse(w, http.StatusGone, metav1.StatusReasonExpired, "The provided continue parameter is too old")
			return
		}
		all = rest
	} else {
		for _, name := range slices.Sorted(maps.Keys(state.Objects)) {
			if object := state.Objects[name]; selector.Matches(labels.Set(object.Labels)) {
				all = append(all, object)
			}
		}
	}
	page := coordinationv1.LeaseList{
		TypeMeta: metav1.TypeMeta{Kind: "LeaseList", APIVersion: "coordination.k8s.io/v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(state.Version, 10)}, Items: all,
	}
	if limit > 0 && len(all) > limit && !fromCache {
		page.Continue = fmt.Sprintf("page-%d-%d", state.Version, len(s.pages))
		s.pages[page.Continue] = all[limit:]
		page.Items = all[:limit]
	}
	answer(w, http.StatusOK, page)
}
