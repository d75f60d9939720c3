package redisconn

// MaxFlights is how many exchanges are under way at a time.
const MaxFlights = maxFlights

// Waiting is how many commands wait for an exchange.
func (c *Client) Waiting() int {
	c.flights.mu.Lock()
	defer c.flights.mu.Unlock()
	return len(c.flights.waiting)
}
