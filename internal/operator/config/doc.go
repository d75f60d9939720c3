// Package config turns flags, environment variables and one YAML file into the
// finished settings of a command, and checks which settings contradict each other.
//
// # Contract
//
//   - A key has one name everywhere: max_backward in the file, --max-backward as
//     a flag, KAZAHANA_MAX_BACKWARD in the environment. It is written once, as a field
//     of Serve or LeaseServer: its tags have its flag, its bounds, its default and its
//     text, which the help, the manual page and the packaged sample show.
//   - Flags outrank the environment, which outranks the file, which outranks the
//     default. A source that sets a list or a map replaces the whole of it.
//   - Unknown keys and variables, duplicate keys, wrong types, values out of range
//     and contradictions stop the start. The error names the key, where it was
//     set, the value, and the allowed values. A value that another source overrides is
//     checked too.
//   - An environment variable that is empty counts as unset. The word none switches off a key
//     with the default none.
//   - No error shows a password: every value passes through Redact.
//   - Settings are values. This package opens no socket, asks no provider and reads
//     no clock; the caller passes the environment, the user ID and the time. It
//     reads the YAML file and, to find a client's socket, the metadata of the places
//     where it can be.
//
// # Flags and the sources
//
// A struct's tags are its flags (flags.go): package pflag reads the command line, and one of
// the kinds in kinds.go decodes every value, of any source. Values of the file know their
// lines. Nothing here calls a method by its name: the linker would then keep every exported
// method of the program.
package config
