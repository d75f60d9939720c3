// Package child runs the program of "kazahanad run" and "kazahanad lock" as a process: in a
// group of its own that ends as a whole, with the terminal when it needs it, with the signals
// that kazahanad gets, and ended by the kernel when kazahanad is killed.
package child
