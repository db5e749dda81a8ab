package edge

import (
	"fmt"
	"os"
	"strings"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// foreignFile holds the hash of a token that belongs to another tunnel, and the id of that tunnel.
const foreignFile = "foreign-token"

// foreignToken is a token that belongs to another tunnel or role than its bootstrap file names. Each attempt would use
// up one of its uses, so the finding is kept across restarts. If path is empty, it is kept in memory only.
type foreignToken struct {
	path     string
	hash, id string // empty: not known yet
}

// remember stores the tunnel of a token. It returns an error if it could not write the file.
func (f *foreignToken) remember(token, id string) error {
	f.hash, f.id = enrol.HashToken(token), id
	if f.path == "" {
		return nil
	}
	return disk.Replace(f.path, []byte(f.hash+" "+f.id+"\n"))
}

// claim returns what a token is for, as foreignToken stores it: the tunnel id, with the role if it is not wanted.
func claim(subject model.Subject, wanted model.Role) string {
	if subject.Role == wanted {
		return subject.ID
	}
	return string(subject.Role) + ":" + subject.ID
}

// reject returns an error for a credential whose token is known to belong to another tunnel.
func (f *foreignToken) reject(credential Credential) error {
	if f.hash == "" && f.path != "" {
		data, err := os.ReadFile(f.path)
		if err != nil {
			return nil //nolint:nilerr // there is no record, or it is unreadable
		}
		f.hash, f.id, _ = strings.Cut(strings.TrimSpace(string(data)), " ")
	}
	otherRole := strings.Contains(f.id, ":")
	if f.hash != enrol.HashToken(credential.Token) || (!otherRole && (credential.ID == "" || f.id == credential.ID)) {
		return nil
	}
	if role, _, ok := strings.Cut(f.id, ":"); ok {
		return fmt.Errorf(
			"enrolling edge: %w: the token is for the role %s, the bootstrap file is not: check its field role",
			certs.ErrRefused, role,
		)
	}
	return fmt.Errorf(
		"enrolling edge: %w: the token belongs to the tunnel %s, the bootstrap file to %s", certs.ErrRefused, f.id,
		credential.ID,
	)
}
