package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/kazahana/kazahana/internal/didyoumean"
)

// flag is a field of a struct with the tag name, or a positional argument with the tag arg.
// Further tags say how it reads a text: type names one of kinds (otherwise the field's own
// type decides), min, max and enum bound it, and default is its default. The tags
// short, group, placeholder and help are for the reader.
type flag struct {
	name   string // with dashes, where a key has underscores
	group  string // its heading; "" = none
	tag    reflect.StructTag
	field  reflect.Value
	given  bool // on the command line
	isFlag bool // and no argument
}

var _ pflag.Value = (*flag)(nil)

// ownDecoder is a type that reads itself from a value.
type ownDecoder interface{ decode(v value) error }

// flagsOf are the flags of a struct, in its order.
func flagsOf(structure any) []*flag {
	return fields(reflect.ValueOf(structure).Elem(), "name", "")
}

// fields returns the fields with the tag, also those in embedded structs, which share their
// group.
func fields(structure reflect.Value, tag, group string) (all []*flag) {
	for i := range structure.NumField() {
		field := structure.Type().Field(i)
		own := cmp.Or(field.Tag.Get("group"), group)
		if name := field.Tag.Get(tag); name != "" {
			all = append(all, &flag{name: name, group: own, tag: field.Tag, field: structure.Field(i)})
		} else if field.Anonymous && field.Type.Kind() == reflect.Struct {
			all = append(all, fields(structure.Field(i), tag, own)...)
		}
	}
	return all
}

func (f *flag) key() string { return strings.ReplaceAll(f.name, "-", "_") }

func (f *flag) hasDefault() bool {
	_, has := f.tag.Lookup("default")
	return has
}

// words are the only values that there are; nil: there are others.
func (f *flag) words() []string {
	if all := f.tag.Get("enum"); all != "" {
		return strings.Split(all, ",")
	}
	return nil
}

// kindsOfTypes are the kinds of fields without the tag type.
var kindsOfTypes = map[reflect.Type]string{
	reflect.TypeFor[string](): "verbatim", reflect.TypeFor[[]string](): "verbatims", reflect.TypeFor[bool](): "switch",
	reflect.TypeFor[int](): "number", reflect.TypeFor[int64](): "number",
	reflect.TypeFor[time.Duration](): "duration", reflect.TypeFor[time.Time](): "epoch",
}

func (f *flag) kind() string {
	plain := f.field.Type()
	if plain.Kind() == reflect.Pointer {
		plain = plain.Elem()
	}
	kind := cmp.Or(f.tag.Get("type"), kindsOfTypes[plain])
	if kind == "verbatim" && f.words() != nil {
		return "word"
	}
	return kind
}

// decode sets the field from a value, or names the key and its place.
func (f *flag) decode(v value) error {
	if own, is := f.field.Addr().Interface().(ownDecoder); is {
		return own.decode(v)
	}
	decode := kinds[f.kind()]
	if decode == nil {
		panic("config: --" + f.name + " has no kind")
	}
	return decode(f, v)
}

// set sets the field, which may be a pointer.
func (f *flag) set(parsed any) {
	field := f.field
	if field.Kind() == reflect.Pointer {
		field.Set(reflect.New(field.Type().Elem()))
		field = field.Elem()
	}
	field.Set(reflect.ValueOf(parsed).Convert(field.Type()))
}

// judge decodes a value that another source overrides.
func (f *flag) judge(v value) error {
	aside := *f
	aside.field = reflect.New(f.field.Type()).Elem()
	return aside.decode(v)
}

// Set implements pflag.Value. A flag that is given again replaces a single value, and adds to
// a list or a map.
func (f *flag) Set(text string) error {
	if !strings.HasPrefix(f.kind(), "verbatim") {
		text = strings.TrimSpace(text)
	}
	if !f.given {
		f.field.SetZero()
		f.given = true
	}
	if err := f.decode(value{key: f.key(), name: f.key(), text: text}); err != nil {
		return fmt.Errorf("%s: %w", f.spelling(), err)
	}
	return nil
}

// spelling returns the flag as a user writes it.
func (f *flag) spelling() string {
	switch {
	case !f.isFlag:
		return f.name
	case len(f.name) == 1:
		return "-" + f.name
	}
	return "--" + f.name
}

// String implements pflag.Value.
func (f *flag) String() string { return f.tag.Get("default") }

// Type implements pflag.Value: it is what stands for the value in the help.
func (f *flag) Type() string {
	switch kind := f.kind(); {
	case kind == "switch":
		return "bool"
	case f.tag.Get("placeholder") == "" && kind == "duration":
		return "DURATION"
	}
	return cmp.Or(f.tag.Get("placeholder"), strings.ToUpper(f.name))
}

// GroupOf and WordsOf are the annotations of a flag that Bind has made: its heading in the
// help, and the only values that it can have.
const (
	GroupOf = "group"
	WordsOf = "words"
)

// Bind gives a command line the flags of a struct, and sets their defaults.
func Bind(set *pflag.FlagSet, structure any) { bind(set, flagsOf(structure)) }

func bind(set *pflag.FlagSet, flags []*flag) {
	set.SortFlags = false
	for _, f := range flags {
		if f.hasDefault() {
			if err := f.decode(value{key: f.key(), name: f.key(), text: f.tag.Get("default")}); err != nil {
				panic("config: the default of --" + f.name + ": " + err.Error())
			}
		}
		f.isFlag = true
		added := &pflag.Flag{
			Name: f.name, Shorthand: f.tag.Get("short"), Usage: f.tag.Get("help"), Value: f, DefValue: f.tag.Get("default"),
			Annotations: map[string][]string{GroupOf: {f.group}},
		}
		if f.kind() == "switch" {
			added.NoOptDefVal = "true"
		} else if words := f.words(); words != nil {
			added.Annotations[WordsOf] = words
		}
		set.AddFlag(added)
	}
}

// FlagError returns the fault of a flag. It shows no value that may be a password.
func FlagError(err error, set *pflag.FlagSet) error {
	var (
		unknown   *pflag.NotExistError
		lacking   *pflag.ValueRequiredError
		invalid   *pflag.InvalidValueError
		malformed *pflag.InvalidSyntaxError
	)
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		return fmt.Errorf("unknown flag -%s", quoteName(unknown.GetSpecifiedName()))
	case errors.As(err, &unknown):
		var known []string
		set.VisitAll(func(f *pflag.Flag) { known = append(known, strings.ReplaceAll(f.Name, "-", "_")) })
		name, hint := unknown.GetSpecifiedName(), ""
		if near := didyoumean.Name(name, known); near != "" {
			hint = fmt.Sprintf(", did you mean --%s?", strings.ReplaceAll(near, "_", "-"))
		}
		return fmt.Errorf("unknown flag --%s%s", quoteName(name), hint)
	case errors.As(err, &lacking):
		f := lacking.GetFlag()
		return fmt.Errorf("--%s needs a value: %s", f.Name, f.Value.Type())
	case errors.As(err, &invalid):
		return invalid.Unwrap() // which names the flag
	case errors.As(err, &malformed):
		return fmt.Errorf("%s is not a flag", quoteName(malformed.GetSpecifiedFlag()))
	}
	return err
}

// Arguments are the positional arguments of a command: the fields of its struct with the tag
// arg. The tag optional marks arguments that need not be given; a list takes all that are left.
type Arguments []*flag

// ArgumentsOf returns the arguments of a struct.
func ArgumentsOf(structure any) Arguments {
	return fields(reflect.ValueOf(structure).Elem(), "arg", "")
}

// Usage is how the help writes them: KEY [CMD...].
func (a Arguments) Usage() string {
	var all []string
	for _, f := range a {
		text := f.name
		if f.isList() {
			text += "..."
		}
		if f.isOptional() {
			text = "[" + text + "]"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// Help explains each of them in a paragraph.
func (a Arguments) Help() string {
	var all []string
	for _, f := range a {
		all = append(all, f.name+": "+f.tag.Get("help"))
	}
	return strings.Join(all, "\n\n")
}

// Words are the only values of the first argument; nil: there are others.
func (a Arguments) Words() []string {
	if len(a) == 0 {
		return nil
	}
	return a[0].words()
}

// Set sets the fields from the arguments of a command line.
func (a Arguments) Set(texts []string) error {
	for _, f := range a {
		switch {
		case f.isList() && (len(texts) > 0 || f.isOptional()):
			for _, text := range texts {
				if err := f.Set(text); err != nil {
					return err
				}
			}
			return nil
		case len(texts) > 0:
			if err := f.Set(texts[0]); err != nil {
				return err
			}
			texts = texts[1:]
		case !f.isOptional():
			return fmt.Errorf("an argument is missing: %s", f.name)
		}
	}
	if len(texts) > 0 {
		return Unexpected(texts[0])
	}
	return nil
}

// UnexpectedArgument begins the error about an argument too many.
const UnexpectedArgument = "unexpected argument"

// Unexpected is the error about an argument too many, without its passwords: a URL, if its
// flag was forgotten.
func Unexpected(argument string) error {
	return fmt.Errorf("%s %s", UnexpectedArgument, quoteName(argument))
}

func (f *flag) isList() bool { return f.field.Kind() == reflect.Slice }

func (f *flag) isOptional() bool {
	_, is := f.tag.Lookup("optional")
	return is
}
