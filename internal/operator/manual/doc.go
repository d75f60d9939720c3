// Package manual writes manual pages and the help of commands. It derives them from the tree of
// the commands, so that nothing has to be kept in step by hand.
package manual
