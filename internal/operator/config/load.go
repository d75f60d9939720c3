package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// DefaultFile is the daemon's default configuration file, which may be missing, and
// DefaultLeaseServerFile the lease server's.
const (
	DefaultFile            = "/etc/kazahana/kazahanad.yaml"
	DefaultLeaseServerFile = "/etc/kazahana/lease-server.yaml"
)

// Process is the environment that settings depend on.
type Process struct {
	Environ []string  // as of os.Environ
	UID     int       // effective user ID
	Now     time.Time // for settings that must not lie in the future; zero = not checked
	// Only are the keys that a command takes from the environment and the file, if it does
	// not take all. It ignores all others, also invalid ones.
	Only []string

	library bool              // see LoadFields
	fields  map[string]string // of it

	// For tests, in place of the default file and of readFile.
	defaultFile string
	readFile    func(path, namedBy string, optional bool) (data []byte, found bool, err error)
}

// origins say where a key was set, by its name; a missing one has its default.
type origins map[string]string

// Given reports whether any source sets the key.
func (o origins) Given(key string) bool { return o[key] != "" }

// Cite names a key with the place where it was set: "fallback (FILE line 3)".
func (o origins) Cite(key string) string {
	if where := o[key]; where != "" {
		return key + " (" + where + ")"
	}
	return key + " (default)"
}

// command are the words of a struct of keys that messages have.
type command struct {
	name    string
	file    string   // its default configuration file
	foreign []string // variables that are for other processes
}

func commandOf(settings any) command {
	if _, is := settings.(*LeaseServer); is {
		return command{"lease-server", DefaultLeaseServerFile, append(slices.Clone(foreignVariables), "KAZAHANA_SOCKET")}
	}
	return command{"serve", DefaultFile, foreignVariables}
}

// Options are kong's, for a command line that holds structs of keys.
func Options() []kong.Option {
	return append(kinds(), kong.ValueFormatter(Help))
}

// Help is the help of a flag, with its default.
func Help(v *kong.Value) string {
	if v.Flag == nil || !v.HasDefault || v.Tag.Type == "" || strings.Contains(v.Help, "(default ") {
		return kong.DefaultHelpValueFormatter(v)
	}
	return strings.TrimSuffix(v.Help, ".") + " (default " + v.Default + ")."
}

// sourcesHelp explains the sources by a flag.
func sourcesHelp(flag string) string {
	key := strings.ReplaceAll(flag, "-", "_")
	return fmt.Sprintf("Every flag is also an environment variable (--%s is %s) and a key of the YAML file (%s). "+
		"A flag outranks the variable, the variable outranks the file, the file outranks the default. "+
		"Durations have a unit: 500ms, 5s, 2m.", flag, variable(key), key)
}

// modelOf is kong's model of a struct of flags.
func modelOf(grammar any) *kong.Kong {
	parser, err := kong.New(grammar, append(Options(), kong.NoDefaultHelp())...)
	if err != nil {
		panic("config: " + err.Error()) // the struct's tags are wrong
	}
	return parser
}

func keyOf(flag *kong.Flag) string { return strings.ReplaceAll(flag.Name, "-", "_") }

// keysOf are the keys of a struct, in its order.
func keysOf(settings any) (all []string) {
	for _, flag := range modelOf(settings).Model.Flags {
		all = append(all, keyOf(flag))
	}
	return all
}

// sources is a resolver of kong: what the file and the environment set. Kong ranks its own
// environment below resolvers, treats an empty variable as set, reads the real environment
// only, and prints the value of a variable that it cannot parse, even a password.
type sources map[string]value

// Validate implements kong.Resolver. The keys and their values have been judged before.
func (s sources) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver.
func (s sources) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if v, set := s[keyOf(flag)]; set {
		return v, nil
	}
	return nil, nil
}

// parse reads the command line of grammar, which holds settings, with all sources.
func (p Process) parse(grammar any, args []string, settings any, from *origins) (*environment, error) {
	parser := modelOf(grammar)
	k, err := kong.Trace(parser, args)
	if err == nil {
		err = k.Error
	}
	if err != nil {
		return nil, err
	}
	*from = origins{}
	env := newEnvironment(p.Environ)
	given, file, err := p.given(commandOf(settings), keysOf(settings), env, k)
	if err != nil {
		return nil, err
	}
	resolver := sources{}
	for _, v := range given { // a value that another source overrides is judged too
		flag := flagNamed(parser.Model.Flags, v.name)
		if err := decode(flag, v, reflect.New(flag.Target.Type()).Elem()); err != nil {
			return nil, err
		}
		resolver[v.name], (*from)[v.name] = v, v.where
	}
	for _, step := range k.Path {
		if step.Flag != nil {
			(*from)[keyOf(step.Flag)] = "--" + step.Flag.Name
		}
	}
	k.AddResolver(resolver)
	for _, step := range []func() error{k.Reset, k.Resolve, func() error { _, err := k.Apply(); return err }, k.Validate} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	reflect.ValueOf(settings).Elem().FieldByName("Config").SetString(file)
	return env, nil
}

// given is what the sources beside the command line set, the weakest first, and the file
// that was read, "" for none.
func (p Process) given(c command, known []string, env *environment, k *kong.Context) (all []value, file string, err error) {
	if p.library {
		return p.ofFields(), "", nil
	}
	fromEnv, err := env.values(c, known, p.Only)
	if err != nil {
		return nil, "", err
	}
	fromFile, file, err := p.readConfig(c, known, fromEnv, k)
	return append(fromFile, fromEnv...), file, err
}

// ofFields are the keys that the fields of embed.Config set.
func (p Process) ofFields() (given []value) {
	for field, text := range p.fields {
		own := field
		if field == "Service" { // which is a group of keys here
			own = "DefaultService"
		}
		f, _ := reflect.TypeFor[Serve]().FieldByName(own)
		key := strings.ReplaceAll(f.Tag.Get("name"), "-", "_")
		if key == "" {
			panic("config: Serve has no key " + field)
		}
		given = append(given, value{key: key, name: key, where: "Config." + field, text: strings.TrimSpace(text)})
	}
	slices.SortFunc(given, func(a, b value) int { return strings.Compare(a.where, b.where) })
	return given
}

// readConfig reads the file that the key config names, else the default one if it exists.
func (p Process) readConfig(c command, known []string, fromEnv []value, k *kong.Context) (all []value, file string, err error) {
	path, where, optional := c.file, "", true
	if p.defaultFile != "" {
		path = p.defaultFile
	}
	for _, v := range fromEnv {
		if v.key != "config" {
			continue
		}
		if path, err = v.scalar(); err != nil {
			return nil, "", err
		}
		where, optional = v.where, false
	}
	flag := flagNamed(k.Model.Flags, "config")
	if slices.ContainsFunc(k.Path, func(step *kong.Path) bool { return step.Flag == flag }) {
		path, where, optional = k.FlagValue(flag).(string), "--config", false
	}
	if path == none && !optional {
		return nil, "", nil
	}
	read := p.readFile
	if read == nil {
		read = readFile
	}
	data, found, err := read(path, where, optional)
	if err != nil || !found {
		return nil, "", err
	}
	root, err := parseFile(path, data)
	if err != nil {
		return nil, path, err
	}
	for _, v := range root.members {
		switch {
		case v.key == "config":
			return nil, path, v.errorf("a file cannot name another: use --config or KAZAHANA_CONFIG")
		case len(p.Only) > 0 && !slices.Contains(p.Only, v.key):
		case !slices.Contains(known, v.key):
			return nil, path, unknownKey(c.name, known, v)
		default:
			all = append(all, v)
		}
	}
	return all, path, nil
}

func flagNamed(flags []*kong.Flag, key string) *kong.Flag {
	for _, flag := range flags {
		if keyOf(flag) == key {
			return flag
		}
	}
	return nil
}

// decode sets a field from a value, and names the key and its place if it cannot.
func decode(flag *kong.Flag, v value, target reflect.Value) error {
	if target.Kind() == reflect.Pointer {
		target.Set(reflect.New(target.Type().Elem()))
	}
	scan := kong.ScanFromTokens(kong.Token{Type: kong.FlagValueToken, Value: v})
	return flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: scan}, target)
}

// unknownKey suggests the key that was probably meant.
func unknownKey(command string, known []string, v value) error {
	in := ""
	if v.where != "" {
		in = " in " + v.where
	}
	return fmt.Errorf("unknown key %s%s: %s", quoteName(v.key), in, suggest(command, v.name, known, func(name string) string { return name }))
}
