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
)

// Names in the objects. They are public: operators select and read by them.
const (
	labelManager = "app.kubernetes.io/managed-by" // selects all objects of all pools
	manager      = "kazahana"
	labelPool    = "kazahana.github.io/pool"
	labelRequest = "kazahana.github.io/request" // of the latest grant

	annotationGrant = "kazahana.github.io/grant"
	annotationPool  = "kazahana.github.io/pool-state"
)

// never is the end of a slot that cannot be granted: its object is foreign or unreadable.
const never = math.MaxInt64

func slotName(pool string, id int64) string { return fmt.Sprintf("kazahana-%s-%d", pool, id) }

// headName ends in letters, so that the head of a pool orders-1 is no slot of orders.
func headName(pool string) string { return "kazahana-" + pool + "-pool" }

// slotOf is the machine ID of an object of the pool; false where it is none.
func slotOf(pool, name string) (id int64, ok bool) {
	text, ok := strings.CutPrefix(name, "kazahana-"+pool+"-")
	id, err := strconv.ParseInt(text, 10, 63)
	return id, ok && err == nil && id >= 0 && slotName(pool, id) == name
}

// readSlot returns the slot that the object of a machine ID records. A foreign or unreadable one
// is taken for ever.
func readSlot(l *coordinationv1.Lease, id int64) slot {
	var s slot
	err := json.Unmarshal([]byte(l.Annotations[annotationGrant]), &s)
	if err != nil || s.Format != format || s.Lease.ID != id || s.End < 0 || s.Lease.Layout().Validate() != nil {
		s = emptySlot(id, never)
	}
	s.read = l
	return s
}

// object is the slot as it is written. Its spec is for people.
func (s slot) object(pool string) *coordinationv1.Lease {
	out := annotated(s.read, pool, slotName(pool, s.Lease.ID), annotationGrant, s)
	delete(out.Labels, labelRequest)
	if s.Request != "" {
		out.Labels[labelRequest] = s.Request
	}
	seconds := min(max(1, (s.Lease.Expired-s.Renewed+999)/1000), math.MaxInt32)
	out.Spec = coordinationv1.LeaseSpec{
		LeaseTransitions: pointer(int32(min(s.Number, math.MaxInt32))), LeaseDurationSeconds: pointer(int32(seconds)),
		AcquireTime: microTime(s.Lease.Created), RenewTime: microTime(s.Renewed),
	}
	if holder := holderOf(s.Meta); !s.Released && holder != "" {
		out.Spec.HolderIdentity = &holder
	}
	return out
}

// annotated is the object that was read, nil where there is none, with the value in an annotation.
func annotated(read *coordinationv1.Lease, pool, name, annotation string, value any) *coordinationv1.Lease {
	text, _ := json.Marshal(value) // never fails: slots and heads have nothing that cannot be marshalled
	out := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if read != nil {
		out = read.DeepCopy()
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	out.Labels[labelManager], out.Labels[labelPool] = manager, pool
	out.Annotations[annotation] = string(text)
	return out
}

func microTime(unixMS int64) *metav1.MicroTime {
	return pointer(metav1.NewMicroTime(time.UnixMilli(unixMS).UTC()))
}

func pointer[T any](v T) *T { return &v }

// readHead returns the head that its object records.
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
	h.UID, h.read = string(l.UID), l
	return h, nil
}

// object is the head as it is written.
func (h head) object(pool string) *coordinationv1.Lease {
	return annotated(h.read, pool, headName(pool), annotationPool, h)
}

// holderOf returns the name shown as a lease's holder: namespace/pod where they are known, else
// the host.
func holderOf(meta map[string]string) string {
	if meta["pod"] != "" && meta["namespace"] != "" {
		return meta["namespace"] + "/" + meta["pod"]
	}
	return meta["host"]
}
