package providertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/proxytest"
)

// Remote is a provider on a real server, with a proxy in between.
type Remote struct {
	Proxy *proxytest.Proxy
	Open  func() (provider.Provider, error) // through the proxy
	Near  provider.Provider                 // on the same server, without the proxy
	// Sending is for a provider that looks at the record before it sends the release. It
	// arranges that f is called between the two.
	Sending func(p provider.Provider, f func())
	// Mark is in the bytes of every release once, and of nothing else that is sent.
	Mark string
	// Repeats is true for a provider that may send a release several times where no answer comes,
	// because the server carries out one of them at most.
	Repeats bool
	// LooksUp is true for a provider that asks for the outcome when an answer is lost.
	LooksUp bool
}

// remoteTest is one test of a Remote.
type remoteTest struct {
	*testing.T
	Remote
}

// RunRemote holds a provider to its word about a release on a bad network: ErrNotSent
// where the release was not sent, another error where it may have been, and in no case a
// second one.
func RunRemote(t *testing.T, r Remote) {
	for _, test := range []struct {
		name string
		run  func(*remoteTest)
	}{
		{"Down", (*remoteTest).down},
		{"NeverAnswers", (*remoteTest).neverAnswers},
		{"GivenUp", (*remoteTest).givenUp},
		{"ClosesAfterReading", (*remoteTest).closesAfterReading},
		{"AnswerIsLost", (*remoteTest).answerIsLost},
		{"AnswersLate", (*remoteTest).answersLate},
	} {
		t.Run(test.name, func(t *testing.T) {
			on := &remoteTest{t, r}
			on.restart()
			test.run(on)
		})
	}
}

// restart ends all faults, and all connections.
func (t *remoteTest) restart() {
	t.Helper()
	t.Proxy.Down()
	must.Succeed(t, t.Proxy.Up())
}

// soon is a deadline that a silent server misses, on any machine.
const soon = 400 * time.Millisecond

func (t *remoteTest) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// open opens a provider that has everything it needs for a release: a connection,
// a login, scripts that the server knows.
func (t *remoteTest) open() provider.Provider {
	t.Helper()
	p, err := t.Open()
	must.Succeed(t, err)
	t.Cleanup(func() { p.Close() })
	must.Succeed(t, p.Release(t.within(time.Minute), SignedRelease(t.acquire(), time.Now().UnixMilli())))
	return p
}

func (t *remoteTest) acquire() lease.Lease {
	t.Helper()
	leases, err := t.Near.Acquire(t.within(time.Minute), provider.AcquireRequest{})
	must.Succeed(t, err)
	return leases[0]
}

// held reports whether the lease is still the caller's.
func (t *remoteTest) held(l lease.Lease) bool {
	t.Helper()
	lost, err := provider.Verify(t.within(time.Minute), t.Near, "", []lease.Lease{l})
	must.Succeed(t, err)
	return len(lost) == 0
}

// unsent releases where nothing can be sent, and where it then can.
func (t *remoteTest) unsent(p provider.Provider, l lease.Lease, d time.Duration) {
	t.Helper()
	seen := t.seen()
	req := SignedRelease(l, time.Now().UnixMilli())
	if err := p.Release(t.within(d), req); !errors.Is(err, provider.ErrNotSent) {
		t.Errorf("the error is %v, want ErrNotSent", err)
	}
	t.restart()
	if !t.held(l) || t.seen() != seen {
		t.Errorf("the release was sent all the same: held %v, %d sent", t.held(l), t.seen()-seen)
	}
	var err error
	await.Eventually(t, "the connection is made anew", func() bool {
		err = p.Release(t.within(time.Minute), req)
		return !errors.Is(err, provider.ErrNotSent)
	})
	if err != nil || t.held(l) {
		t.Errorf("once it can be sent: %v", err)
	}
}

// down has no connection from before where the provider sends at once: it could not
// know that the connection leads nowhere.
func (t *remoteTest) down() {
	open := t.Open
	if t.Sending != nil {
		open = func() (provider.Provider, error) { return t.open(), nil }
	}
	p, err := open()
	must.Succeed(t, err)
	defer p.Close()
	l := t.acquire()
	t.Proxy.Down()
	t.unsent(p, l, time.Minute)
}

// neverAnswers: a provider that asks first sends nothing to a server that does not
// answer; another one cannot know.
func (t *remoteTest) neverAnswers() {
	p, l := t.open(), t.acquire()
	t.Proxy.Mute()
	if t.Sending != nil {
		t.unsent(p, l, soon)
		p = t.open()
		l = t.acquire()
	}
	t.unknown(p, l, t.Proxy.Mute, func(cancel func()) { cancel() })
	if !t.held(l) {
		t.Error("a release that was dropped was carried out")
	}
}

// givenUp: the caller goes while the server still keeps the answer to the question
// back. When it comes, no release follows it.
func (t *remoteTest) givenUp() {
	if t.Sending == nil {
		t.Skip("it does not ask before it releases")
	}
	p, l := t.open(), t.acquire()
	t.Proxy.Hold()
	before := len(t.Proxy.Recorded())
	ctx, cancel := context.WithCancel(context.Background())
	seen := t.seen()
	done := make(chan error, 1)
	go func() { done <- p.Release(ctx, SignedRelease(l, time.Now().UnixMilli())) }()
	await.Eventually(t, "the question is seen", func() bool { return len(t.Proxy.Recorded()) > before })
	cancel()
	if err := <-done; !errors.Is(err, provider.ErrNotSent) || !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v, want ErrNotSent", err)
	}
	t.Proxy.Pass()
	time.Sleep(soon) // however long one looks, there is none
	if !t.held(l) || t.seen() != seen {
		t.Errorf("the release was sent all the same: %d sent", t.seen()-seen)
	}
}

// unknown releases while the fault befalls the release itself. Once the release was
// seen, then is called; it may end the caller's context.
func (t *remoteTest) unknown(p provider.Provider, l lease.Lease, fault func(), then func(cancel func())) {
	t.Helper()
	seen := t.seen()
	if t.Sending != nil {
		t.Sending(p, fault)
		defer t.Sending(p, func() {})
	} else {
		fault()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Release(ctx, SignedRelease(l, time.Now().UnixMilli())) }()
	await.Eventually(t, "the release is seen", func() bool { return t.seen() > seen })
	then(cancel)
	err := <-done
	if known := err == nil && t.LooksUp && !t.held(l); !known && (err == nil || errors.Is(err, provider.ErrNotSent)) {
		t.Errorf("the error is %v, want one that says that nothing is known", err)
	}
	if n := t.seen() - seen; n != 1 && !t.Repeats {
		t.Errorf("%d releases were sent, want 1", n)
	}
}

// seen is how many releases have come to the proxy.
func (t *remoteTest) seen() int { return t.Proxy.Sent(t.Mark) }

func (t *remoteTest) closesAfterReading() {
	p, l := t.open(), t.acquire()
	t.unknown(p, l, func() { t.Proxy.CutAt(t.Mark) }, func(func()) {})
	if !t.held(l) {
		t.Error("a release that was dropped was carried out")
	}
}

// answer holds back the answer to a release that is carried out.
func (t *remoteTest) answer(then func(cancel func())) {
	p, l := t.open(), t.acquire()
	t.unknown(p, l, t.Proxy.Hold, func(cancel func()) {
		await.Eventually(t, "the release is carried out", func() bool { return !t.held(l) })
		then(cancel)
	})
}

func (t *remoteTest) answerIsLost() { t.answer(func(func()) { t.restart() }) }

func (t *remoteTest) answersLate() {
	t.answer(func(cancel func()) { cancel() })
	t.Proxy.Pass()
}
