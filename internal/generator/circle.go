package generator

import "slices"

// circle holds the requests that wait, the next one to be served first. A connection
// waits with one request at a time, so serving requests in a circle serves connections so.
type circle []*Pending

func (c circle) empty() bool { return len(c) == 0 }

func (c *circle) add(p *Pending) { *c = append(*c, p) }

// pop removes the request that is served next. There is one.
func (c *circle) pop() *Pending {
	p := (*c)[0]
	(*c)[0] = nil
	if *c = (*c)[1:]; len(*c) == 0 {
		*c = nil // let the backing array go
	}
	return p
}

// drop removes the requests for which ends is true.
func (c *circle) drop(ends func(*Pending) bool) { *c = slices.DeleteFunc(*c, ends) }

// remove removes one request, and reports whether it was there.
func (c *circle) remove(p *Pending) bool {
	at := slices.Index(*c, p)
	if at < 0 {
		return false
	}
	*c = slices.Delete(*c, at, at+1)
	return true
}
