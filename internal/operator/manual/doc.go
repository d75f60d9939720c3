// Package manual writes manual pages and shell completions. It derives them from
// kong's model of the command line and from the packaged samples of the
// configuration, so that nothing has to be kept in step by hand.
//
// The possible values of a flag come from its tags: enum lists words, a
// placeholder of FILE, PATH or DIR means a name in the file system.
package manual
