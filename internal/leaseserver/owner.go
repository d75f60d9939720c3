package leaseserver

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/problem"
)

// plainSubject is a certificate's subject that can be the name of a lock's owner
// as it is. No slash: what follows one is the client's choice.
var plainSubject = regexp.MustCompile(`^[A-Za-z0-9._@:=+-]{1,64}$`)

// lockOwner is how the credential is called as the owner of locks: by its owner,
// or a digest of that where it has characters that such a name must not have.
func (c Credential) lockOwner() string {
	subject, isCertificate := strings.CutPrefix(c.Owner, certificateOwner)
	if !isCertificate || plainSubject.MatchString(subject) {
		return c.Owner
	}
	sum := sha256.Sum256([]byte(subject))
	return certificateOwner + "sha256=" + hex.EncodeToString(sum[:16])
}

// ownerOf is the owner that a request names, which must be the credential or
// begin with that and a slash (LS-AUTH-001). Named are the whole, the suffix
// behind the slash, or neither, which is the credential itself.
func (c Credential) ownerOf(id string, suffix *string) (string, error) {
	own := c.lockOwner()
	bySuffix := own
	if suffix != nil && *suffix != "" {
		bySuffix = own + "/" + *suffix
	}
	switch {
	case id == "":
		return bySuffix, nil
	case suffix != nil && id != bySuffix:
		return "", problem.New(problem.InvalidRequest, "owner_id and owner_suffix name two owners: give one of them")
	case id != own && !strings.HasPrefix(id, own+"/"):
		return "", problem.New(problem.Forbidden, "this credential is %q, and can act for that and for what begins with %q", own, own+"/")
	}
	return id, nil
}

// suffixOf is what the owner has behind the credential, nil when it is another's.
func (c Credential) suffixOf(owner string) *string {
	rest, ok := strings.CutPrefix(owner, c.lockOwner())
	if !ok || rest != "" && rest[0] != '/' {
		return nil
	}
	rest = strings.TrimPrefix(rest, "/")
	return &rest
}

// requestIDForm is that of locks and of sequences.
var requestIDForm = regexp.MustCompile(`^[\x21-\x7e]{1,128}$`)

// A credential's request IDs reach the stores of locks and sequences behind a mark
// of the credential, so that nobody hits another's. They can be read again, for
// the problem that tells a credential what it holds itself; only those that are
// too long for that are replaced by a digest.
const (
	markedPlain  = "."
	markedDigest = "~"
)

func (c Credential) mark() string {
	sum := sha256.Sum256([]byte(c.Tenant + "\x00" + c.Owner))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

func (c Credential) markRequestID(id string) (string, error) {
	switch {
	case id == "":
		return "", nil
	case !requestIDForm.MatchString(id):
		return "", problem.New(problem.InvalidRequest, "the request ID must be 1 to %d visible ASCII characters", lock.MaxRequestID)
	}
	if marked := c.mark() + markedPlain + id; len(marked) <= lock.MaxRequestID {
		return marked, nil
	}
	sum := sha256.Sum256([]byte(id))
	return c.mark() + markedDigest + base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// readRequestID is the request ID that was marked, "" for another credential's.
func (c Credential) readRequestID(marked string) string {
	id, ok := strings.CutPrefix(marked, c.mark()+markedPlain)
	if !ok {
		return ""
	}
	return id
}
