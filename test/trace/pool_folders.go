package trace

import (
	"maps"
	"slices"
)

// poolFolder is the folder of a service.
type poolFolder struct {
	machine string
	lists   map[string]bool // what its leases file may list
	foreign bool
}

// Start: a process begins in a folder, and adopts what the last one wrote there, or nothing.
func (p *pool) Start(q *poolProc, s PoolStep) {
	f := p.folder(s.Folder)
	if other := p.runsIn(s.Folder, q); other != "" {
		p.breaks("Locked: %s starts in %s, which %s has", s.Proc, s.Folder, other)
	}
	q.down, q.folder, q.begin = false, s.Folder, s.MS
	for _, name := range s.Leases {
		s.Lease = name
		p.adopts(q, f, p.lease(s), s)
	}
	f.machine, f.foreign, f.lists = s.Machine, false, map[string]bool{}
	for _, name := range s.Leases {
		q.held[name], f.lists[name] = true, true
	}
}

func (p *pool) folder(name string) *poolFolder {
	if p.folders[name] == nil {
		p.folders[name] = &poolFolder{lists: map[string]bool{}}
	}
	return p.folders[name]
}

// adopts is Adoptable of Pool.tla, and Begin, for one lease.
func (p *pool) adopts(q *poolProc, f *poolFolder, l *poolLease, s PoolStep) {
	switch other := p.user(l.Lease, q); {
	case !f.lists[l.Lease]:
		p.breaks("Adoptable: %s adopts %s, which the process before has not left in %s", s.Proc, l.Lease, s.Folder)
	case f.foreign:
		p.breaks("Adoptable: %s adopts %s from %s, which another boot has left", s.Proc, l.Lease, s.Folder)
	case other != "":
		p.breaks("OneUser: %s and %s use %s", s.Proc, other, l.Lease)
	case l.wasSent:
		p.breaks("ReleasedIsGone: %s adopts %s, whose release was sent", s.Proc, l.Lease)
	case l.used && l.last >= s.MS:
		p.breaks("Begin: %s adopts %s with the mark at %d, and %d was embedded", s.Proc, l.Lease, s.MS, l.last)
	}
}

// Kill: the process ends, in any way.
func (p *pool) Kill(q *poolProc, s PoolStep) {
	if q.down {
		p.breaks("Kill: %s is killed, and does not run", s.Proc)
	}
	q.down = true
}

// runsIn is the process that runs in the folder, beside one; "": none.
func (p *pool) runsIn(folder string, beside *poolProc) string {
	for _, name := range slices.Sorted(maps.Keys(p.procs)) {
		if other := p.procs[name]; other != beside && !other.down && other.folder == folder {
			return name
		}
	}
	return ""
}

// Boot: the rest of the machine's folders is of another boot (rule 21).
func (p *pool) Boot(_ *poolProc, s PoolStep) {
	for _, name := range slices.Sorted(maps.Keys(p.procs)) {
		if q := p.procs[name]; !q.down && p.folder(q.folder).machine == s.Machine {
			p.breaks("Boot: %s boots, and %s runs", s.Machine, name)
		}
	}
	for _, f := range p.folders {
		f.foreign = f.foreign || f.machine == s.Machine
	}
}
