package etcd

import (
	"context"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Idle records are looked for as new ones are made: four looks for each, so that
// no more are left than are made in lock.KeepIdle and a third.
const (
	sweepEvery = 16 // records made
	sweepLooks = 64 // records looked at
)

// sweep deletes the idle records among the next ones, and reports whether it came
// to the end, where it begins anew. The floor rises to their tokens first, in the
// same transaction: none is granted again.
func (s *Store) sweep(ctx context.Context) (end bool, err error) {
	if !s.sweeping.TryLock() {
		return true, nil
	}
	defer s.sweeping.Unlock()
	all := s.prefix + "key/"
	if s.sweepFrom == "" {
		s.sweepFrom = all
	}
	p := paths{floor: s.prefix + "floor"}
	var resp *clientv3.TxnResponse
	err = s.conn.Call(ctx, func(ctx context.Context) (err error) {
		resp, err = s.conn.KV.Txn(ctx).Then(
			clientv3.OpGet(s.sweepFrom, clientv3.WithRange(clientv3.GetPrefixRangeEnd(all)), clientv3.WithLimit(sweepLooks)),
			clientv3.OpGet(p.floor),
		).Commit()
		return err
	})
	if err != nil {
		return false, err
	}
	k := known{}
	if kv := first(resp.Responses[1]); kv != nil {
		k.floorRev = kv.ModRevision
		if k.floor, err = s.parseFloor(kv); err != nil {
			return false, err
		}
	}
	found := resp.Responses[0].GetResponseRange().Kvs
	for _, kv := range found {
		s.sweepFrom = string(kv.Key) + "\x00"
		if k.record, err = s.parse(kv); err != nil {
			return false, err
		}
		if !k.Idle(s.nowMS()) {
			continue
		}
		k.rev, p.record = kv.ModRevision, string(kv.Key)
		p.marker = s.prefix + "held/" + p.record[len(all):]
		if k.floorRev, err = s.remove(ctx, p, k); err != nil || k.floorRev == 0 {
			return false, err
		}
		k.floor = max(k.floor, k.Token)
	}
	if len(found) < sweepLooks {
		s.sweepFrom = ""
	}
	return s.sweepFrom == "", nil
}

// remove deletes a record that is still what is known, and whose lock is not held.
// It returns the new revision of the floor; 0: nothing was done.
func (s *Store) remove(ctx context.Context, p paths, k known) (floorRev int64, err error) {
	compares := append(p.same(k), clientv3.Compare(clientv3.ModRevision(p.floor), "=", k.floorRev))
	err = s.conn.Call(ctx, func(ctx context.Context) error {
		resp, err := s.conn.KV.Txn(ctx).If(compares...).Then(
			clientv3.OpPut(p.floor, strconv.FormatInt(max(k.floor, k.Token), 10)), clientv3.OpDelete(p.record),
		).Commit()
		if err == nil && resp.Succeeded {
			floorRev = resp.Header.Revision
		}
		return err
	})
	return floorRev, err
}
