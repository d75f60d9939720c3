package leaseserver

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	lockhttp "github.com/kazahana/kazahana/internal/lock/http"
	"github.com/kazahana/kazahana/internal/problem"
)

// Scope is a right that a credential has.
type Scope string

// The scopes.
const (
	ScopeLeases     Scope = "leases"     // acquire, release, verify, and see the tenant's leases
	ScopeRun        Scope = "run"        // extend leases, as kazahanad run does
	ScopeLocks      Scope = "locks"      // the lock service
	ScopeSequences  Scope = "sequences"  // the sequence service
	ScopePlacements Scope = "placements" // the activation records of placement
	ScopeAdmin      Scope = "admin"      // /metrics, /stats, and the leases of all tenants
)

var allScopes = []Scope{ScopeLeases, ScopeRun, ScopeLocks, ScopeSequences, ScopePlacements, ScopeAdmin}

// The tenant and the owner of requests without a credential.
const (
	DefaultTenant  = "default"
	AnonymousOwner = "anonymous"
)

// certificateOwner comes before a certificate's subject. No owner of a token has
// a colon.
const certificateOwner = "certificate:"

// Credential is the identity that a request acts for.
type Credential struct {
	Tenant string
	Owner  string
	Scopes []Scope
}

// Limits of a tokens file.
const (
	maxTokensFile = 4 << 20
	maxTokens     = 4096
	minToken      = 16                                  // characters; fewer can be guessed
	maxTenant     = 64 - len(lockhttp.PlacementTenants) // with the scope placements
)

// accountName is the form of the names of tenants and owners. A slash is not allowed: it
// separates a tenant from its service.
var accountName = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,64}$`)

// Tokens is the content of a tokens file.
type Tokens struct {
	entries []tokenEntry
}

type tokenEntry struct {
	sum        [sha256.Size]byte
	credential Credential
}

// ReadTokens reads a tokens file.
func ReadTokens(path string) (*Tokens, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxTokensFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxTokensFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxTokensFile)
	}
	t, err := ParseTokens(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// ParseTokens reads the YAML list of a tokens file. Errors number the entries
// from 1 and never show a token.
func ParseTokens(b []byte) (*Tokens, error) {
	var list []struct {
		Token  string  `yaml:"token"`
		SHA256 string  `yaml:"token_sha256"`
		Tenant string  `yaml:"tenant"`
		Owner  string  `yaml:"owner"`
		Scopes []Scope `yaml:"scopes"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(b))
	decoder.KnownFields(true)
	if err := decoder.Decode(&list); err != nil {
		return nil, yamlError(err)
	}
	if len(list) == 0 || len(list) > maxTokens {
		return nil, fmt.Errorf("it lists %d tokens, and must list 1 to %d", len(list), maxTokens)
	}
	t := &Tokens{}
	for i, e := range list {
		sum, err := tokenSum(e.Token, e.SHA256)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i+1, err)
		}
		c := Credential{Tenant: cmp.Or(e.Tenant, DefaultTenant), Owner: e.Owner, Scopes: e.Scopes}
		if err := c.check(); err != nil {
			return nil, fmt.Errorf("entry %d: %w", i+1, err)
		}
		if j := slices.IndexFunc(t.entries, func(o tokenEntry) bool { return o.sum == sum }); j >= 0 {
			return nil, fmt.Errorf("entries %d and %d have the same token", j+1, i+1)
		}
		t.entries = append(t.entries, tokenEntry{sum, c})
	}
	return t, nil
}

// yamlError leaves out the parser's quotation of the file, which may be a token.
func yamlError(err error) error {
	text := err.Error()
	if types, ok := errors.AsType[*yaml.TypeError](err); ok && len(types.Errors) > 0 {
		text = types.Errors[0]
	}
	line := regexp.MustCompile(`line \d+`).FindString(text)
	if field := regexp.MustCompile(`field ([a-z_0-9]{1,20}) not found`).FindStringSubmatch(text); field != nil {
		return fmt.Errorf("%s: there is no field %q: an entry has token or token_sha256, tenant, owner and scopes", line, field[1])
	}
	return fmt.Errorf("it must be a YAML list of {token or token_sha256, tenant, owner, scopes}; look at %s", cmp.Or(line, "its beginning"))
}

// tokenSum is the SHA-256 of an entry's token.
func tokenSum(token, sum string) (out [sha256.Size]byte, err error) {
	switch {
	case (token == "") == (sum == ""):
		return out, errors.New("it must have either token or token_sha256")
	case sum != "":
		b, err := hex.DecodeString(sum)
		if err != nil || len(b) != len(out) {
			return out, fmt.Errorf("token_sha256 must be %d hex digits: printf %%s TOKEN | sha256sum", 2*len(out))
		}
		return [sha256.Size]byte(b), nil
	case len(token) < minToken:
		return out, fmt.Errorf("the token has %d characters, and must have %d or more: openssl rand -hex 32 makes a good one", len(token), minToken)
	}
	return sha256.Sum256([]byte(token)), nil
}

func (c Credential) check() error {
	switch {
	case !accountName.MatchString(c.Tenant), !accountName.MatchString(c.Owner):
		return errors.New("tenant and owner must be 1 to 64 letters, digits, '.', '_', '@' or '-'")
	case len(c.Tenant) > maxTenant && slices.Contains(c.Scopes, ScopePlacements):
		return fmt.Errorf("the tenant has %d characters, and may have %d with the scope %q: stores add %q to it",
			len(c.Tenant), maxTenant, ScopePlacements, lockhttp.PlacementTenants)
	case strings.HasSuffix(c.Tenant, lockhttp.PlacementTenants):
		return fmt.Errorf("the tenant must not end in %q: stores use such names for another tenant's placement", lockhttp.PlacementTenants)
	case len(c.Scopes) == 0:
		return fmt.Errorf("scopes is missing: list some of %v", allScopes)
	}
	for _, s := range c.Scopes {
		if !slices.Contains(allScopes, s) {
			return fmt.Errorf("there is no scope %q: the scopes are %v", s, allScopes)
		}
	}
	return nil
}

// find looks a token up. It compares with every entry in constant time, so that timing
// reveals nothing about a guess.
func (t *Tokens) find(token string) (Credential, bool) {
	sum := sha256.Sum256([]byte(token))
	at := -1
	for i := range t.entries {
		if subtle.ConstantTimeCompare(sum[:], t.entries[i].sum[:]) == 1 {
			at = i
		}
	}
	if at < 0 {
		return Credential{}, false
	}
	return t.entries[at].credential, true
}

// authenticate finds the credential of the request.
func (s *Server) authenticate(r *http.Request) (Credential, error) {
	who := Credential{Tenant: DefaultTenant, Owner: AnonymousOwner, Scopes: allScopes}
	if s.o.ClientCertificates {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			return Credential{}, problem.New(problem.Unauthenticated, "a client certificate is needed")
		}
		who.Owner = certificateOwner + r.TLS.VerifiedChains[0][0].Subject.String()
	}
	if s.o.Tokens == nil {
		return who, nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Credential{}, problem.New(problem.Unauthenticated, "a token is needed: send the header Authorization: Bearer TOKEN")
	}
	found, ok := s.o.Tokens().find(token)
	if !ok {
		return Credential{}, problem.New(problem.Unauthenticated, "the token is not known here")
	}
	return found, nil
}
