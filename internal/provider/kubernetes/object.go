package kubernetes

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kazahana/kazahana/internal/provider"
)

// Names in the objects. They are public: operators select and read by them.
const (
	labelManager = "app.kubernetes.io/managed-by" // selects all objects of all pools
	manager      = "kazahana"
	labelPool    = "kazahana.github.io/pool"
	labelRequest = "kazahana.github.io/request" // of the latest grant; isHead in heads
	isHead       = "head"

	annotationGrant = "kazahana.github.io/grant"
	annotationPool  = "kazahana.github.io/pool-state"
)

// never is the end of a slot that cannot be granted: its object is foreign or unreadable.
const never = math.MaxInt64

func slotName(pool string, id int64) string { return fmt.Sprintf("kazahana-%s-%d", pool, id) }

// headName ends in letters, so that the head of a pool orders-1 is no slot of orders.
func headName(pool string) string { return "kazahana-" + pool + "-pool" }

// slotsOf selects the slots of the pool whose labels are as they were written.
func slotsOf(pool string) string { return labelPool + "=" + pool + "," + labelRequest + "!=" + isHead }

// slotOf is the machine ID of an object of the pool; false where it is none.
func slotOf(pool, name string) (id int64, ok bool) {
	text, ok := strings.CutPrefix(name, "kazahana-"+pool+"-")
	id, err := strconv.ParseInt(text, 10, 63)
	return id, ok && err == nil && id >= 0 && slotName(pool, id) == name
}

// readSlot is what the object of a machine ID records. A foreign or unreadable one is taken
// for ever.
func readSlot(l *coordinationv1.Lease, id int64) slot {
	var s slot
	text := l.Annotations[annotationGrant]
	if text == "" || json.Unmarshal([]byte(text), &s) != nil || s.Format != format || s.ID != id || s.End < 0 {
		return slot{grant: grant{ID: id, End: never}}
	}
	return s
}

// object is the slot as it is written in place of before, nil where there is none. What it
// says in its spec is for people.
func (s slot) object(pool string, before *coordinationv1.Lease) *coordinationv1.Lease {
	text, _ := json.Marshal(s) // never fails: the type has nothing that cannot be marshalled
	out := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: slotName(pool, s.ID)}}
	if before != nil {
		out = before.DeepCopy()
	}
	label(out, pool, s.Request)
	out.Annotations[annotationGrant] = string(text)
	out.Spec = coordinationv1.LeaseSpec{LeaseTransitions: pointer(int32(min(s.Number, math.MaxInt32)))}
	if s.Nonce == "" {
		return out
	}
	seconds := min(max(1, (s.Expired-s.Renewed+999)/1000), math.MaxInt32)
	out.Spec.LeaseDurationSeconds = pointer(int32(seconds))
	out.Spec.AcquireTime, out.Spec.RenewTime = microTime(s.Created), microTime(s.Renewed)
	if holder := holderOf(s.Meta); !s.Released && holder != "" {
		out.Spec.HolderIdentity = &holder
	}
	return out
}

func label(l *coordinationv1.Lease, pool, request string) {
	if l.Labels == nil {
		l.Labels = map[string]string{}
	}
	if l.Annotations == nil {
		l.Annotations = map[string]string{}
	}
	l.Labels[labelManager], l.Labels[labelPool] = manager, pool
	delete(l.Labels, labelRequest)
	if request != "" {
		l.Labels[labelRequest] = request
	}
}

func microTime(unixMS int64) *metav1.MicroTime {
	return pointer(metav1.NewMicroTime(time.UnixMilli(unixMS).UTC()))
}

func pointer[T any](v T) *T { return &v }

// readHead is what the head object records.
func readHead(l *coordinationv1.Lease) (head, error) {
	var h head
	if err := json.Unmarshal([]byte(l.Annotations[annotationPool]), &h); err != nil || h.Key == "" || h.Generation < 1 {
		return head{}, fmt.Errorf("the Lease object %q in namespace %q is not the head of a pool, or cannot be read: "+
			"nothing is granted; choose another pool, or delete the object if no lease of the pool lives", l.Name, l.Namespace)
	}
	if h.Format != format {
		return head{}, fmt.Errorf("the head of a pool, the Lease object %q in namespace %q, was written by a newer kazahanad (format %d, this one knows up to %d): see docs/compatibility.md",
			l.Name, l.Namespace, h.Format, format)
	}
	h.UID, h.Version = string(l.UID), l.ResourceVersion
	return h, nil
}

// object is the head as it is written in place of before, nil where there is none.
func (h head) object(pool string, before *coordinationv1.Lease) *coordinationv1.Lease {
	text, _ := json.Marshal(h) // never fails: the type has nothing that cannot be marshalled
	out := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: headName(pool)}}
	if before != nil {
		out = before.DeepCopy()
	}
	label(out, pool, isHead)
	out.Annotations[annotationPool] = string(text)
	return out
}

// holderOf is who is shown as a lease's holder: namespace/pod where they are known, else the
// host.
func holderOf(meta map[string]string) string {
	if meta["pod"] != "" && meta["namespace"] != "" {
		return meta["namespace"] + "/" + meta["pod"]
	}
	return meta["host"]
}

// poolName reports that the pool cannot be in the name of an object.
func poolName(t provider.Terms, ok func(string) bool) error {
	if !ok(t.Pool) {
		return fmt.Errorf("pool %q: with Kubernetes a pool's name is 1 to 63 lower-case letters, digits or '-', as in the names of objects", t.Pool)
	}
	return nil
}
