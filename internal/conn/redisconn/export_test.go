package redisconn

// MaxFlights is how many exchanges are under way at a time.
const MaxFlights = maxFlights

// Flying is how many exchanges are under way.
func (c *Client) Flying() int {
	c.flights.mu.Lock()
	defer c.flights.mu.Unlock()
	return c.flights.flying
}

// Waiting is how many commands wait for an exchange.
func (c *Client) Waiting() int {
	c.flights.mu.Lock()
	defer c.flights.mu.Unlock()
	return len(c.flights.waiting)
}
