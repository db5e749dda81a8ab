package edge

import (
	"fmt"
	"os"
	"strings"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
)

// foreignFile holds the hash of a token that turned out to be another tunnel's, and the id of that.
const foreignFile = "foreign-token"

// foreignToken is a token that is not for the tunnel that its bootstrap file names. Each try would use up one of its uses, so
// it is known across starts. Where the path is empty it is known to this agent only.
type foreignToken struct {
	path     string
	hash, id string // empty: not known yet
}

// remember notes the tunnel that a token is for. An error says that it is not on disk.
func (f *foreignToken) remember(token, id string) error {
	f.hash, f.id = enrol.HashToken(token), id
	if f.path == "" {
		return nil
	}
	return disk.Replace(f.path, []byte(f.hash+" "+f.id+"\n"))
}

// refuse returns an error for a credential whose token is known to be another tunnel's.
func (f *foreignToken) refuse(credential Credential) error {
	if f.hash == "" && f.path != "" {
		data, err := os.ReadFile(f.path)
		if err != nil {
			return nil //nolint:nilerr // there is none, or nobody can tell
		}
		f.hash, f.id, _ = strings.Cut(strings.TrimSpace(string(data)), " ")
	}
	if f.hash != enrol.HashToken(credential.Token) || credential.ID == "" || f.id == credential.ID {
		return nil
	}
	return fmt.Errorf("enrolling edge: %w: the token belongs to the tunnel %s, the bootstrap file to %s", certs.ErrRefused, f.id, credential.ID)
}
