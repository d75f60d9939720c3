//go:build linux

package ids

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/caller"
	service "github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/load"
)

const placementKey = "placement"

const (
	titlePing   = "placement: Ping on the same socket"
	titleRemote = "Placement.Resolve, remote key"
	titleActive = "Placement.Resolve, active here"
)

// Quantities of the row, in nanoseconds.
const (
	quantityPing      = "ping p50"
	quantityPingP99   = "ping p99"
	quantityRemote    = "remote p50"
	quantityRemoteP99 = "remote p99"
	quantityActive    = "active p50"
	quantityActiveP99 = "active p99"
)

const (
	actorKind = "bench"
	// joinTime is about how long two daemons take until they know each other.
	joinTime  = 3 * time.Second
	joinLimit = 30 * time.Second
	// farAway is one whose actors are remote.
	placedHere, farAway = "here.example:1", "far.example:1"
)

func placementRow() row {
	r := row{
		key: placementKey, help: "Placement.Resolve of a remote and of an active actor, beside Ping on the same socket",
		takes: func(p plan, _ int) time.Duration { return joinTime + 3*loadTime(p.Duration) },
		measure: func(ctx context.Context, b *bench) error {
			return b.withPlacement(ctx, b.measureResolve)
		},
		note: "two daemons on one SQLite store, the second on another core, if there is one; the first is asked on one connection for an actor of the second's, " +
			"for one of its own that a process has activated, and for Ping, in another order each round; every answer must be the same but for its time",
	}
	for _, q := range [][3]string{{titlePing, quantityPing, quantityPingP99}, {titleRemote, quantityRemote, quantityRemoteP99}, {titleActive, quantityActive, quantityActiveP99}} {
		r.shows(q[0], q[1], "p50, µs", report.Microseconds)
		r.shows(q[0], q[2], "p99, µs", report.Microseconds)
	}
	r.ratio(titleRemote, "p50 / Ping", quantityRemote, quantityPing, 1.5, true)
	r.ratio(titleActive, "p50 / Ping", quantityActive, quantityPing, 1.5, true)
	return r
}

// withPlacement runs do on a daemon that knows another member.
func (b *bench) withPlacement(ctx context.Context, do func(context.Context, *daemon) error) error {
	store := filepath.Join(b.freshDir(), "placement.db")
	other, err := b.startDaemon(ctx, daemonOptions{name: "far", authority: farAway, store: store, beside: true})
	if other != nil {
		defer other.Stop()
	}
	if err != nil {
		return err
	}
	far, err := newActors(ctx, other, 1)
	if err != nil {
		return err
	}
	defer far.close()
	return b.withDaemon(ctx, daemonOptions{name: "placement", authority: placedHere, store: store}, func(d *daemon) error {
		return do(ctx, d)
	})
}

// measureResolve has one actor of each locality found, and then asked for.
func (b *bench) measureResolve(ctx context.Context, d *daemon) error {
	actors, err := newActors(ctx, d, 2)
	if err != nil {
		return err
	}
	defer actors.close()
	local, remote, err := actors.oneOfEach(ctx)
	if err != nil {
		return err
	}
	asked := []struct{ dialect, p50, p99 string }{
		{load.Ping, quantityPing, quantityPingP99},
		{load.Resolve("remote", actorKind, remote), quantityRemote, quantityRemoteP99},
		{load.Resolve("local", actorKind, local), quantityActive, quantityActiveP99},
	}
	for i := range asked {
		a := asked[(b.round+i)%len(asked)]
		result, err := b.load(ctx, &server{name: kazahanad, service: d.Service},
			load.Options{Socket: d.socket, Dialect: a.dialect, Count: 1, Connections: 1, Depth: 1})
		if err != nil {
			return err
		}
		b.others.note(result)
		b.add(placementKey, kazahanad, a.p50, float64(result.P50))
		b.add(placementKey, kazahanad, a.p99, float64(result.P99))
	}
	return nil
}

// actors is this process as one that has actors.
type actors struct {
	client   *caller.Client
	executor *caller.Executor
}

// newActors registers with a daemon, and waits until that knows so many members with a
// process for the kind.
func newActors(ctx context.Context, d *daemon, members int) (*actors, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, joinLimit, errors.New("the daemons do not know each other"))
	defer cancel()
	a := &actors{client: caller.New(d.socket, joinLimit)}
	executor, err := caller.Register(ctx, d.socket, []string{actorKind}, nil, nil)
	for a.executor = executor; err == nil; {
		var now service.SnapshotPage
		err = a.client.Call(ctx, "Placement.Snapshot", &now, map[string]any{"limit": 1})
		serving := 0
		for _, m := range now.Members {
			if slices.Contains(m.Kinds, actorKind) {
				serving++
			}
		}
		if err == nil && now.State == "member" && serving == members {
			return a, nil
		}
		const pause = 20 * time.Millisecond
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			err = fmt.Errorf("%w: state %s, %d of %d members have a process", context.Cause(ctx), now.State, serving, members)
		}
	}
	a.close()
	return nil, fmt.Errorf("actors: %w", err)
}

// close leaves what is activated to the end of the connection: the daemon is
// stopped as well.
func (a *actors) close() {
	if a.executor != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = a.executor.Close(ended)
	}
	_ = a.client.Close()
}

// oneOfEach finds an actor of this host's, which is activated thereby, and a
// remote one.
func (a *actors) oneOfEach(ctx context.Context) (local, remote string, err error) {
	const enough = 1000 // for either not to be among them is out of the question
	for i := 0; i < enough && (local == "" || remote == ""); i++ {
		identity := fmt.Sprint(i)
		r, err := a.client.Resolve(ctx, actorKind, identity, joinLimit)
		switch {
		case err != nil:
			return "", "", fmt.Errorf("actors: %w", err)
		case r.IsLocal():
			local = identity
		default:
			remote = identity
		}
	}
	if local == "" || remote == "" {
		return "", "", fmt.Errorf("actors: of %d all belong to one of two members", enough)
	}
	return local, remote, nil
}
