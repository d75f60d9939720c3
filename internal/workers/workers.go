// Package workers carries out jobs in goroutines that have done others before, if there are
// some: their stacks have grown already. Growing one takes longer than starting a goroutine.
package workers

import (
	"sync"
	"sync/atomic"
)

// Workers is such goroutines. Its methods may be called by many goroutines.
type Workers struct {
	most    int64
	closing <-chan struct{}
	waiting atomic.Int64   // how many wait for a job
	jobs    chan func()    // to one that waits
	all     sync.WaitGroup // those that have a job or wait for one
}

// New returns workers of which so many wait for jobs at most. They wait until closing is
// closed; afterwards each job has a goroutine of its own.
func New(most int, closing <-chan struct{}) *Workers {
	return &Workers{most: int64(most), closing: closing, jobs: make(chan func())}
}

// Start has a goroutine carry out a job, and returns at once.
func (w *Workers) Start(job func()) {
	select {
	case w.jobs <- job:
	default:
		w.all.Go(func() { w.work(job) })
	}
}

// Wait waits for the end of all jobs, once closing is closed. No job may be started
// meanwhile.
func (w *Workers) Wait() { w.all.Wait() }

func (w *Workers) work(job func()) {
	for {
		job()
		job = nil // what it refers to is not kept by one that waits
		if w.waiting.Add(1) > w.most {
			w.waiting.Add(-1)
			return
		}
		select {
		case job = <-w.jobs:
			w.waiting.Add(-1)
		case <-w.closing:
			w.waiting.Add(-1)
			return
		}
	}
}
