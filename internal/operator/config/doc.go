// Package config turns flags, environment variables and one YAML file into the
// finished settings of a command, and checks which settings contradict each other.
//
// # Contract
//
//   - A key has one name everywhere: max_backward in the file, --max-backward as
//     a flag, KAZAHANA_MAX_BACKWARD in the environment. It is written once, as a field
//     of Serve or LeaseServer: kong's tags have its flag, its bounds and its default,
//     and its comment is what the packaged sample says of it.
//   - Flags outrank the environment, which outranks the file, which outranks the
//     default. A source that sets a list or a map replaces the whole of it.
//   - Unknown keys and variables, duplicate keys, wrong types, values out of range
//     and contradictions stop the start. The error names the key, where it was
//     set, the value, and what is allowed. A value that another source overrides
//     is checked too.
//   - An environment variable that is empty counts as unset. The word none
//     switches off a key whose default is none.
//   - No error shows a password: every value passes through Redact.
//   - Settings are values. This package opens no socket, asks no provider and reads
//     no clock; the caller passes the environment, the user ID and the time. It
//     reads the YAML file and, to find a client's socket, the metadata of the places
//     where it can be.
//
// # Kong and the sources
//
// Kong reads the command line and the defaults, and decodes every value by the mappers
// in kinds.go. The file and the environment reach it as one resolver, whose values are
// YAML nodes that know their lines.
package config
