package config

import (
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kazahana/kazahana/internal/address"
)

// kinds are the values that the tag "type" of a key names. Further tags bound them: min and
// max, enum (kong's), and words where kong's enum would need a default.
func kinds() (all []kong.Option) {
	for name, mapper := range map[string]kong.Mapper{
		"text":         single(alone(orNone(parseText))),
		"path":         single(alone(parseText)),
		"socket":       single(alone(address.Parse)),
		"mode":         single(alone(parseMode)),
		"ids":          listOf(parseNumericID),
		"number":       single(parseNumber),
		"size":         single(parseSize),
		"duration":     single(parseDuration),
		"milliseconds": single(parseMilliseconds),
		"backward":     single(alone(parseBackward)),
		"word":         single(parseWord),
		"switch":       switchMapper{single(alone(parseSwitch))},
		"address":      single(parseAddress),
		"service":      single(alone(parseServiceName)),
		"provider":     single(alone(parseProvider)),
		"store":        single(alone(parseStore)),
		"authority":    single(alone(orNone(parseAuthority))),
		"epoch":        single(alone(parseEpoch)),
		"range":        single(alone(parseRange)),
	} {
		all = append(all, kong.NamedMapper(name, mapper))
	}
	return all
}

// alone makes a parser of one that needs no tags.
func alone[T any](parse func(string) (T, error)) func(string, *kong.Value) (T, error) {
	return func(text string, _ *kong.Value) (T, error) { return parse(text) }
}

// single is the mapper of a key with a single value.
func single[T any](parse func(string, *kong.Value) (T, error)) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		v, err := pop(ctx)
		if err != nil {
			return err
		}
		text, err := v.scalar()
		if err != nil {
			return err
		}
		parsed, err := parse(text, ctx.Value)
		if err != nil {
			return v.refuse(text, err)
		}
		if target.Kind() == reflect.Pointer {
			target = target.Elem()
		}
		target.Set(reflect.ValueOf(parsed).Convert(target.Type()))
		return nil
	}
}

// listOf is the mapper of a key with a list. A flag that is given again adds to it.
func listOf[T any](parse func(string) (T, error)) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		v, err := pop(ctx)
		if err != nil {
			return err
		}
		elements, err := v.elements()
		if err != nil {
			return err
		}
		all, _ := target.Interface().([]T)
		for _, e := range elements {
			p, err := parse(e.text)
			if err != nil {
				return e.refuse(e.text, err)
			}
			all = append(all, p)
		}
		if len(elements) == 0 { // none
			all = nil
		}
		target.Set(reflect.ValueOf(all))
		return nil
	}
}

// switchMapper is the mapper of a flag that means true when it stands alone.
type switchMapper struct{ kong.MapperFunc }

// IsBool implements kong.BoolMapper.
func (switchMapper) IsBool() bool { return true }

// Decode implements kong.Mapper.
func (m switchMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		ctx.Scan.PushTyped("true", kong.FlagValueToken)
	}
	return m.MapperFunc(ctx, target)
}

// pop takes the value of a key: text of the command line, or what a source has. It takes a
// negative number, as in --max-backward -1, which kong would take for a flag.
func pop(ctx *kong.DecodeContext) (value, error) {
	if text, ok := ctx.Scan.Peek().Value.(string); ok && ctx.Value.Tag.Type == "backward" && isNegative(text) {
		ctx.Scan.PushTyped(ctx.Scan.Pop().Value, kong.FlagValueToken)
	}
	token, err := ctx.Scan.PopValue(strings.ToLower(ctx.Value.Flag.FormatPlaceHolder()))
	if err != nil {
		return value{}, err
	}
	if v, ok := token.Value.(value); ok {
		return v, nil
	}
	return value{key: keyOf(ctx.Value.Flag), text: strings.TrimSpace(token.String())}, nil
}

func isNegative(text string) bool {
	return len(text) > 1 && text[0] == '-' && text[1] >= '0' && text[1] <= '9'
}

// bound reads a tag that bounds a key, and is for the struct's author to get right.
func bound[T any](v *kong.Value, tag string, otherwise T, parse func(string) (T, error)) T {
	text := v.Tag.Get(tag)
	if text == "" {
		return otherwise
	}
	limit, err := parse(text)
	if err != nil {
		panic("config: the tag " + tag + " of " + v.Name + " " + err.Error())
	}
	return limit
}

func parse64(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }

func parseNumber(text string, v *kong.Value) (int64, error) {
	if v.Enum != "" {
		if _, err := parseWord(text, v); err != nil {
			return 0, err
		}
	}
	return wholeNumber(bound(v, "min", 0, parse64), bound(v, "max", math.MaxInt64, parse64))(text)
}

func parseSize(text string, v *kong.Value) (int64, error) {
	return byteSize(bound(v, "min", 0, byteSize(0)))(text)
}

func parseDuration(text string, v *kong.Value) (time.Duration, error) {
	return duration(bound(v, "min", 0, time.ParseDuration), bound(v, "max", longestDuration, time.ParseDuration))(text)
}

// parseMilliseconds accepts what a provider can grant a lease for.
func parseMilliseconds(text string, v *kong.Value) (time.Duration, error) {
	d, err := duration(bound(v, "min", 0, time.ParseDuration), longestTerm)(text)
	if err == nil && d%time.Millisecond != 0 {
		err = errors.New("must be whole milliseconds")
	}
	return d, err
}

func parseWord(text string, v *kong.Value) (string, error) {
	words := v.Enum
	if words == "" {
		words = v.Tag.Get("words")
	}
	return oneOf(strings.Split(words, ","))(text)
}

// parseAddress accepts HOST:PORT and unix:PATH. The word none is none, unless the key has a
// default.
func parseAddress(text string, v *kong.Value) (string, error) {
	if text == none && !v.HasDefault {
		return "", nil
	}
	return listenAddress(v.Tag.Get("example"))(text)
}
