package kubetest

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Namespace is the small server's only one.
const Namespace = "apps"

// Server is the small API server. It is safe for concurrent use.
type Server struct {
	tls, plain *httptest.Server

	mu       sync.Mutex
	state    State
	cached   *State // what the cache has, nil = the present state
	pages    map[string][]coordinationv1.Lease
	rights   map[string][]string // verbs by token
	nowMS    func() int64
	requests map[string]int // by verb
	fault    func(w http.ResponseWriter, r *http.Request) bool
}

// State is all objects at one moment.
type State struct {
	Objects map[string]coordinationv1.Lease
	Version int64 // of the latest write
}

func (s State) copied() State {
	s.Objects = maps.Clone(s.Objects)
	return s
}

// NewServer starts a server. nowMS is its clock in Unix ms, nil for the real one.
func NewServer(t testing.TB, nowMS func() int64) *Server {
	if nowMS == nil {
		nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	s := &Server{
		nowMS: nowMS, state: State{map[string]coordinationv1.Lease{}, 1}, pages: map[string][]coordinationv1.Lease{},
		rights: map[string][]string{"admin": {"get", "list", "create", "update", "delete"}}, requests: map[string]int{},
	}
	s.plain = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.plain.Close)
	s.listen(nil)
	t.Cleanup(func() { s.tls.Close() })
	return s
}

// listen serves with TLS, on a new address where there is no listener.
func (s *Server) listen(on net.Listener) {
	s.tls = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	if on != nil {
		_ = s.tls.Listener.Close()
		s.tls.Listener = on
	}
	s.tls.EnableHTTP2 = true
	s.tls.StartTLS()
}

// Kill cuts every connection with TLS, and refuses new ones.
func (s *Server) Kill() {
	s.tls.CloseClientConnections()
	s.tls.Close()
}

// Revive serves again where the server was killed, with the objects that it had.
func (s *Server) Revive(t testing.TB) {
	t.Helper()
	on, err := net.Listen("tcp", s.Address())
	must.Succeed(t, err)
	s.listen(on)
}

// Plain is host:port of the server without TLS. Clients send no token there.
func (s *Server) Plain() string { return s.plain.Listener.Addr().String() }

// Address is host:port of the server with TLS.
func (s *Server) Address() string { return s.tls.Listener.Addr().String() }

// Authority is the certificate that clients must trust, in PEM.
func (s *Server) Authority() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.tls.Certificate().Raw})
}

// KubeconfigText is a kubeconfig for the token.
func (s *Server) KubeconfigText(token string) string {
	return KubeconfigText(s.tls.URL, token, Namespace, s.Authority())
}

// Kubeconfig writes a kubeconfig for the token, and returns its path.
func (s *Server) Kubeconfig(t testing.TB, token string) string {
	return WriteKubeconfig(t, s.KubeconfigText(token))
}

// Allow gives the token the verbs, in place of its earlier ones.
func (s *Server) Allow(token string, verbs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rights[token] = verbs
}

// Revoke makes the token unknown.
func (s *Server) Revoke(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rights, token)
}

// Fault has every request pass through f first, which reports whether it has answered. nil
// ends that.
func (s *Server) Fault(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Snapshot is the present state.
func (s *Server) Snapshot() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.copied()
}

// Restore puts an earlier state in place of the present one, as a restored etcd does.
func (s *Server) Restore(earlier State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.cached, s.pages = earlier.copied(), nil, map[string][]coordinationv1.Lease{}
}

// Freeze has the cache stay as it is now.
func (s *Server) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.state.copied()
	s.cached = &now
}

// Compact has the server forget the lists under way.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages = map[string][]coordinationv1.Lease{}
}

// Requests is how many requests there were, by verb.
func (s *Server) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.requests)
}

// Delete deletes objects, as an operator does.
func (s *Server) Delete(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		s.remove(name)
	}
}

// Edit changes an object, as an operator does.
func (s *Server) Edit(name string, change func(*coordinationv1.Lease)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.state.Objects[name]
	object = *object.DeepCopy()
	change(&object)
	s.put(&object)
}

func (s *Server) remove(name string) {
	delete(s.state.Objects, name)
	s.state.Version++
}

// put writes the object with a new version.
func (s *Server) put(l *coordinationv1.Lease) {
	s.state.Version++
	l.ResourceVersion = strconv.FormatInt(s.state.Version, 10)
	s.state.Objects[l.Name] = *l
}

const root = "/apis/coordination.k8s.io/v1/namespaces/"

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", time.UnixMilli(s.nowMS()).UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	if fault == nil || !fault(w, r) {
		s.Serve(w, r)
	}
}

// Serve carries out a request, regardless of faults.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	verbs, known := s.rights[token]
	if !known {
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
		return
	}
	if r.URL.Path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" {
		review(w, r, verbs)
		return
	}
	namespace, name, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, root), "/leases")
	name = strings.TrimPrefix(name, "/")
	verb := verbOf(r.Method, name)
	if !ok || !strings.HasPrefix(r.URL.Path, root) || verb == "" {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		return
	}
	s.requests[verb]++
	if namespace != Namespace || !slices.Contains(verbs, verb) {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf(
			"leases.coordination.k8s.io %sis forbidden: User %q cannot %s resource \"leases\" in API group \"coordination.k8s.io\" in the namespace %q",
			quoted(name), token, verb, namespace))
		return
	}
	switch verb {
	case "get":
		s.get(w, name)
	case "list":
		s.list(w, r)
	case "create":
		s.create(w, r)
	case "update":
		s.update(w, r, name)
	case "delete":
		s.remove(name)
		answer(w, http.StatusOK, metav1.Status{Status: metav1.StatusSuccess})
	}
}

func quoted(name string) string {
	if name == "" {
		return ""
	}
	return strconv.Quote(name) + " "
}

func verbOf(method, name string) string {
	switch {
	case method == http.MethodGet && name == "":
		return "list"
	case method == http.MethodGet:
		return "get"
	case method == http.MethodPost && name == "":
		return "create"
	case method == http.MethodPut && name != "":
		return "update"
	case method == http.MethodDelete && name != "":
		return "delete"
	}
	return ""
}

func answer(w http.ResponseWriter, status int, body any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// refuse answers with a Status.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	answer(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

// Throttle answers a request as a server does that is asked for too much.
func Throttle(w http.ResponseWriter, seconds int) {
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	refuse(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "The apiserver is overloaded")
}

func review(w http.ResponseWriter, r *http.Request, verbs []string) {
	var asked authorizationv1.SelfSubjectAccessReview
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Spec.ResourceAttributes == nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "no review")
		return
	}
	a := asked.Spec.ResourceAttributes
	asked.Status.Allowed = a.Namespace == Namespace && a.Resource == "leases" && a.Group == coordinationv1.GroupName && slices.Contains(verbs, a.Verb)
	answer(w, http.StatusCreated, asked)
}

func (s *Server) get(w http.ResponseWriter, name string) {
	object, ok := s.state.Objects[name]
	if !ok {
		notFound(w, name)
		return
	}
	answer(w, http.StatusOK, object)
}

func notFound(w http.ResponseWriter, name string) {
	refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("leases.coordination.k8s.io %q not found", name))
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	object, ok := s.read(w, r)
	if !ok {
		return
	}
	if _, exists := s.state.Objects[object.Name]; exists {
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists, fmt.Sprintf("leases.coordination.k8s.io %q already exists", object.Name))
		return
	}
	if object.ResourceVersion != "" {
		refuse(w, http.StatusInternalServerError, "", "resourceVersion should not be set on objects to be created")
		return
	}
	s.make(object)
	answer(w, http.StatusCreated, object)
}

// make writes a new object.
func (s *Server) make(object *coordinationv1.Lease) {
	object.UID = types.UID(uuid.NewString())
	object.Namespace, object.CreationTimestamp = Namespace, metav1.NewTime(time.UnixMilli(s.nowMS()).Truncate(time.Second))
	s.put(object)
}

func (s *Server) update(w http.ResponseWriter, r *http.Request, name string) {
	object, ok := s.read(w, r)
	if !ok {
		return
	}
	if object.Name != name {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "the name of the object does not match the name on the URL")
		return
	}
	before, exists := s.state.Objects[name]
	switch {
	case !exists && object.UID != "":
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: ", object.UID))
	case !exists && object.ResourceVersion != "": // the real server makes a deleted object anew
		object.ResourceVersion = ""
		s.make(object)
		answer(w, http.StatusCreated, object)
	case !exists:
		s.make(object)
		answer(w, http.StatusCreated, object)
	case object.UID != "" && object.UID != before.UID:
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", object.UID, before.UID))
	case object.ResourceVersion == "":
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "metadata.resourceVersion: Invalid value: 0: must be specified for an update")
	case object.ResourceVersion != before.ResourceVersion:
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified; please apply your changes to the latest version and try again")
	default:
		object.UID, object.Namespace, object.CreationTimestamp = before.UID, before.Namespace, before.CreationTimestamp
		if !same(object, &before) { // else the version stays
			s.put(object)
		}
		answer(w, http.StatusOK, object)
	}
}

// same reports whether the objects are equal in their encoded form.
func same(a, b *coordinationv1.Lease) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}
