// Package manual says how the command line and the configuration are used, to
// readers of manual pages and to shells: all of it follows from kong's model of
// the command line and from the packaged samples of the configuration, so that
// nothing has to be kept in step by hand.
//
// What a flag's value can be is taken from its tags: enum and values list words,
// a placeholder of FILE, PATH or DIR means a name in the file system.
package manual
