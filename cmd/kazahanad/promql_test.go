package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// query is what a PromQL expression asks for. It is read by PromQL's lexical
// rules; that it is valid PromQL, promtool says.
type query struct {
	selectors []selector
	labels    []string // named by by, without, on, ignoring and group_left
}

// selector asks for series.
type selector struct {
	metric   string
	matchers []matcher
}

type matcher struct{ label, op, value string }

func (s selector) String() string {
	var all []string
	for _, m := range s.matchers {
		all = append(all, fmt.Sprintf("%s%s%q", m.label, m.op, m.value))
	}
	slices.Sort(all)
	return s.metric + "{" + strings.Join(all, ",") + "}"
}

var promToken = regexp.MustCompile(strings.Join([]string{
	`\s+`,
	`#[^\n]*`,
	`"(?:[^"\\]|\\.)*"`, `'(?:[^'\\]|\\.)*'`, "`[^`]*`", // strings
	`[0-9][0-9a-zA-Z_.]*`,       // numbers and durations
	`[a-zA-Z_:$][a-zA-Z0-9_:]*`, // names; $ begins one of Grafana's variables
	`=~|!~|!=|==|>=|<=|.`,
}, "|"))

// promWords are names that are no metrics' where a metric could be.
var promWords = []string{
	"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset", "atan2", "inf", "nan",
}

// readQuery takes an expression apart.
func readQuery(expr string) (query, error) {
	var tokens []string
	for _, token := range promToken.FindAllString(expr, -1) {
		if strings.TrimSpace(token) != "" && token[0] != '#' {
			tokens = append(tokens, token)
		}
	}
	var q query
	at := func(i int) string {
		if i < len(tokens) {
			return tokens[i]
		}
		return ""
	}
	for i := 0; i < len(tokens); i++ {
		token := strings.ToLower(tokens[i])
		switch {
		case token == "[": // a range, of which nothing is a metric
			for at(i) != "]" && i < len(tokens) {
				i++
			}
		case slices.Contains([]string{"by", "without", "on", "ignoring", "group_left", "group_right"}, token) && at(i+1) == "(":
			for i += 2; at(i) != ")" && i < len(tokens); i++ {
				if at(i) != "," {
					q.labels = append(q.labels, at(i))
				}
			}
		case token == "{":
			return q, fmt.Errorf("a selector without a metric's name in %s", expr)
		case !isPromName(token) || slices.Contains(promWords, token) || at(i+1) == "(" || at(i+1) == "by" || at(i+1) == "without":
			// an operator, a number, a function
		default:
			s := selector{metric: tokens[i]}
			if at(i+1) == "{" {
				for i += 2; at(i) != "}"; {
					if i+2 >= len(tokens) {
						return q, fmt.Errorf("no end of the matchers in %s", expr)
					}
					value := at(i + 2)
					s.matchers = append(s.matchers, matcher{at(i), at(i + 1), value[1 : len(value)-1]})
					if i += 3; at(i) == "," {
						i++
					}
				}
			}
			q.selectors = append(q.selectors, s)
		}
	}
	return q, nil
}

func isPromName(token string) bool {
	return regexp.MustCompile(`^[a-zA-Z_:]`).MatchString(token)
}

func TestReadQuery(t *testing.T) {
	for _, test := range []struct {
		expr      string
		selectors []string
		labels    []string
	}{
		{`up`, []string{`up{}`}, nil},
		{`up{job=~"a|b}", x!='c,"'}[5m] offset 1h`, []string{`up{job=~"a|b}",x!="c,\""}`}, nil},
		{`sum by (a, b) (rate(x_total{c="d"}[5m])) / on (a) group_left () sum(y) by (a) > bool 0.5e3`, []string{`x_total{c="d"}`, `y{}`}, []string{"a", "b", "a", "a"}},
		{"a:b{} and on (c) d # e\n unless f", []string{`a:b{}`, `d{}`, `f{}`}, []string{"c"}},
		{`histogram_quantile(0.99, sum without (le) (increase(x_bucket[$__rate_interval])))`, []string{`x_bucket{}`}, []string{"le"}},
		{`max_over_time(x{service="$service"}[1h:15s]) * 86400 - time()`, []string{`x{service="$service"}`}, nil},
	} {
		q, err := readQuery(test.expr)
		var got []string
		for _, s := range q.selectors {
			got = append(got, s.String())
		}
		if err != nil || !slices.Equal(got, test.selectors) || !slices.Equal(q.labels, test.labels) {
			t.Errorf("%s: %q %q %v, want %q %q", test.expr, got, q.labels, err, test.selectors, test.labels)
		}
	}
	for _, expr := range []string{`{job="a"}`, `up{job="a"`, `up{job`} {
		if _, err := readQuery(expr); err == nil {
			t.Errorf("%s is accepted", expr)
		}
	}
}
