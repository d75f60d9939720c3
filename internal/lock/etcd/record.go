package etcd

import (
	"encoding/json"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/lock"
)

// record is a lock as it is stored.
type record struct {
	lock.State
	Writer  string `json:"w"` // which call wrote it: see write
	Seconds int64  `json:"x"` // of the etcd lease of its marker
}

// known is what was read of a lock, at one revision.
type known struct {
	record
	rev       int64            // mod revision of the record; 0: there is none
	markerRev int64            // likewise of the marker
	lease     clientv3.LeaseID // of the marker
	floor     int64
	floorRev  int64
}

// paths are a lock's keys.
type paths struct{ record, marker, floor string }

func (s *Store) pathsOf(tenant, key string) paths {
	return paths{s.recordsOf(tenant) + key, s.markersOf(tenant) + key, s.prefix + "floor"}
}

// A tenant has no slash.
func (s *Store) recordsOf(tenant string) string { return s.prefix + "key/" + tenant + "/" }
func (s *Store) markersOf(tenant string) string { return s.prefix + "held/" + tenant + "/" }

// gets reads all that known holds.
func (p paths) gets() []clientv3.Op {
	return []clientv3.Op{clientv3.OpGet(p.record), clientv3.OpGet(p.marker), clientv3.OpGet(p.floor)}
}

// same compares with what was read. The floor matters to a lock without a record:
// it may have had one in between.
func (p paths) same(k known) []clientv3.Cmp {
	all := []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(p.record), "=", k.rev),
		clientv3.Compare(clientv3.ModRevision(p.marker), "=", k.markerRev),
	}
	if k.rev == 0 {
		all = append(all, clientv3.Compare(clientv3.ModRevision(p.floor), "=", k.floorRev))
	}
	return all
}

// understand reads the answers to gets.
func (s *Store) understand(p paths, answers []*etcdserverpb.ResponseOp) (k known, err error) {
	if kv := first(answers[0]); kv != nil {
		if k.record, err = s.parse(kv); err != nil {
			return known{}, err
		}
		k.rev = kv.ModRevision
	}
	if kv := first(answers[1]); kv != nil {
		k.markerRev, k.lease = kv.ModRevision, clientv3.LeaseID(kv.Lease)
		if k.rev != k.markerRev {
			return known{}, fmt.Errorf("%s: %s and %s were not written together: one of them was changed by hand", s.place(), p.record, p.marker)
		}
	}
	if kv := first(answers[2]); kv != nil {
		if k.floor, err = s.parseFloor(kv); err != nil {
			return known{}, err
		}
		k.floorRev = kv.ModRevision
	}
	return k, nil
}

func first(answer *etcdserverpb.ResponseOp) *mvccpb.KeyValue {
	if kvs := answer.GetResponseRange().Kvs; len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}

func (s *Store) parse(kv *mvccpb.KeyValue) (r record, err error) {
	err = json.Unmarshal(kv.Value, &r)
	if err == nil && (r.Token < 1 || r.Seconds < 1 || r.Status != lock.Active && r.Status != lock.Released) {
		err = fmt.Errorf("it is no lock: %.100q", kv.Value)
	}
	if err != nil {
		return record{}, fmt.Errorf("%s: the record %s is damaged: %w", s.place(), kv.Key, err)
	}
	return r, nil
}

func (s *Store) parseFloor(kv *mvccpb.KeyValue) (int64, error) {
	floor, err := strconv.ParseInt(string(kv.Value), 10, 64)
	if err != nil || floor < 1 {
		return 0, fmt.Errorf("%s: the record %s is damaged: %.100q is no token", s.place(), kv.Key, kv.Value)
	}
	return floor, nil
}

// at is the time that the lock's state is looked at with: a host's clock, as far
// as that agrees with the marker, which is there as long as the lock is held, and
// for no more than mostMS.
func (r record) at(nowMS int64, held bool, mostMS int64) int64 {
	switch {
	case r.Status != lock.Active:
		return nowMS
	case held:
		return min(max(nowMS, r.ExpiresMS-mostMS), r.ExpiresMS-1)
	}
	return max(nowMS, r.ExpiresMS)
}

// most is the longest that the lock can still be held, in ms.
func (r record) most() int64 { return r.Seconds * 1000 }

// seconds is how long the etcd lease of a term lasts.
func seconds(ttlMS int64) int64 { return (ttlMS+999)/1000 + 1 }
