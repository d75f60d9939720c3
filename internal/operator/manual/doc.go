// Package manual writes manual pages. It derives them from kong's model of the command
// line and from the packaged samples of the configuration, so that nothing has to be kept
// in step by hand.
package manual
