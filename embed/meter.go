package embed

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/issuer"
)

// watch passes what the keeper observes on to a meter. Its instruments are the daemon's
// metrics of the same names.
type watch struct {
	meter   metric.Meter
	service attribute.KeyValue
	errs    []error

	acquires, lost, mismatches, stateErrors, forward, accepted metric.Int64Counter
	calls                                                      metric.Float64Histogram
	skew                                                       metric.Float64Gauge
}

// newWatch makes the instruments; a nil meter counts nothing.
func newWatch(m metric.Meter, service string) (*watch, error) {
	if m == nil {
		m = noop.Meter{}
	}
	w := &watch{meter: m, service: attribute.String("service", service)}
	w.acquires = w.counter("kazahana.lease.acquires", "Acquires by result.")
	w.lost = w.counter("kazahana.leases.lost", "Leases lost before their end.")
	w.mismatches = w.counter("kazahana.epoch.mismatches", "Leases refused for another epoch or bit_ts.")
	w.stateErrors = w.counter("kazahana.state.errors", "Failed writes of the durable local state.")
	w.forward = w.counter("kazahana.clock.forward.events", "Jumps of the wall clock ahead that were not believed.")
	w.accepted = w.counter("kazahana.clock.forward.accepted", "Jumps of the wall clock ahead that lasted and were accepted.")
	var err error
	w.calls, err = m.Float64Histogram("kazahana.provider.request.duration", metric.WithUnit("s"), metric.WithDescription("Duration of provider calls."))
	w.errs = append(w.errs, err)
	w.skew, err = m.Float64Gauge("kazahana.clock.skew", metric.WithUnit("s"), metric.WithDescription("Provider's clock minus this host's, at the last grant."))
	w.errs = append(w.errs, err)
	return w, errors.Join(w.errs...)
}

func (w *watch) counter(name, help string) metric.Int64Counter {
	c, err := w.meter.Int64Counter(name, metric.WithDescription(help))
	w.errs = append(w.errs, err)
	return c
}

func (w *watch) add(c metric.Int64Counter, attributes ...attribute.KeyValue) {
	c.Add(context.Background(), 1, metric.WithAttributes(append(attributes, w.service)...))
}

// Acquired implements keeper.Observer, as the next ones do.
func (w *watch) Acquired(result string) { w.add(w.acquires, attribute.String("result", result)) }

// Called records how long a provider call took.
func (w *watch) Called(op string, d time.Duration) {
	w.calls.Record(context.Background(), d.Seconds(), metric.WithAttributes(attribute.String("op", op)))
}

// Lost counts a lease that ended before its time.
func (w *watch) Lost(reason string) { w.add(w.lost, attribute.String("reason", reason)) }

// Mismatch counts a lease refused for its epoch or bit_ts.
func (w *watch) Mismatch() { w.add(w.mismatches) }

// StateFailed counts a failed write of the local state.
func (w *watch) StateFailed() { w.stateErrors.Add(context.Background(), 1) }

// Skew shows the provider's clock against the local one.
func (w *watch) Skew(skew time.Duration) {
	w.skew.Record(context.Background(), skew.Seconds(), metric.WithAttributes(w.service))
}

func (w *watch) clockEvent(e clock.Event) {
	switch e.Kind {
	case clock.ForwardDisbelieved:
		w.forward.Add(context.Background(), 1)
	case clock.ForwardAccepted:
		w.accepted.Add(context.Background(), 1)
	}
}

// register has the meter read, whenever it collects, what the service counts itself.
func (w *watch) register(s *issuer.Service) (metric.Registration, error) {
	var errs []error
	counter := func(name, help string) metric.Int64ObservableCounter {
		c, err := w.meter.Int64ObservableCounter(name, metric.WithDescription(help))
		errs = append(errs, err)
		return c
	}
	gauge := func(name, unit, help string) metric.Float64ObservableGauge {
		g, err := w.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(help))
		errs = append(errs, err)
		return g
	}
	issued := counter("kazahana.ids.issued", "IDs issued.")
	exhaustions := counter("kazahana.sequence.exhaustions", "Milliseconds whose sequence numbers were used up.")
	backward := counter("kazahana.clock.backward.events", "Times that the clock was found behind the last ID.")
	active := gauge("kazahana.leases.active", "", "Leases usable now.")
	fallback := gauge("kazahana.fallback.active", "", "1 while no lease is usable.")
	expiry := gauge("kazahana.lease.expiry.timestamp", "s", "When the last usable lease ends; 0 without one.")
	overflow := gauge("kazahana.layout.exhaustion.timestamp", "s", "When the layout's time runs out.")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return w.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		mode, st := s.Status()
		own := metric.WithAttributes(w.service)
		for kind, n := range map[string]uint64{
			"regular": st.Issued.Regular, "fallback_cached": st.Issued.FallbackCached,
			"fallback_cached_uncertain": st.Issued.Uncertain, "fallback_random": st.Issued.FallbackRandom,
		} {
			o.ObserveInt64(issued, int64(n), metric.WithAttributes(w.service, attribute.String("kind", kind)))
		}
		o.ObserveInt64(exhaustions, int64(st.Exhaustions), own)
		o.ObserveInt64(backward, int64(st.ClockBackward), own)
		o.ObserveFloat64(active, float64(st.LeasesUsable), own)
		without := 0.0
		if st.LeasesUsable == 0 && mode != generator.ModeStarting {
			without = 1
		}
		o.ObserveFloat64(fallback, without, own)
		o.ObserveFloat64(expiry, float64(st.LeasesEndMS)/1000, own)
		o.ObserveFloat64(overflow, float64(st.ExhaustedMS)/1000, own)
		return nil
	}, issued, exhaustions, backward, active, fallback, expiry, overflow)
}
