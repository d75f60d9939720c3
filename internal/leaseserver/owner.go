package leaseserver

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/kazahana/kazahana/internal/keyname"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/problem"
)

// plainSubject matches subjects of certificates that can be owners of locks unchanged. A
// slash is not allowed: the text after one is the client's choice.
var plainSubject = regexp.MustCompile(`^[A-Za-z0-9._@:=+-]{1,64}$`)

// lockOwner is the credential's name as the owner of locks: its owner, or a digest of it
// if it has characters that are not allowed.
func (c Credential) lockOwner() string {
	subject, isCertificate := strings.CutPrefix(c.Owner, certificateOwner)
	if !isCertificate || plainSubject.MatchString(subject) {
		return c.Owner
	}
	sum := sha256.Sum256([]byte(subject))
	return certificateOwner + "sha256=" + hex.EncodeToString(sum[:16])
}

// ownerOf is the owner that a request names, which must be the credential or begin with
// the credential and a slash (LS-AUTH-001). A request names the whole owner, or the
// suffix behind the slash, or neither, which means the credential itself.
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
		return "", problem.New(problem.Forbidden, "this credential is %q: it can act for %[1]q and for owners that begin with %[2]q", own, own+"/")
	}
	return id, nil
}

// suffixOf is the owner's suffix behind the credential; nil if the owner is another
// credential's.
func (c Credential) suffixOf(owner string) *string {
	rest, ok := strings.CutPrefix(owner, c.lockOwner())
	if !ok || rest != "" && rest[0] != '/' {
		return nil
	}
	rest = strings.TrimPrefix(rest, "/")
	return &rest
}

// requestIDForm is the form of request IDs of locks and sequences.
var requestIDForm = regexp.MustCompile(`^[\x21-\x7e]{1,128}$`)

// mark stands for the credential in the request IDs that reach the stores of locks and
// sequences, so that no client hits another's.
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
	return keyname.MarkedRequestID(c.mark(), id), nil
}
