package edge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// JoinedFolder is the folder in the state folder that holds the bootstrap files of tunnels that a running edge has
	// joined: NAME.yaml. The state of each is in a folder NAME beside it.
	JoinedFolder = "joined"
	// JoinedSuffix is the extension of these files.
	JoinedSuffix = ".yaml"
	// joinedStatusFile is the agent's status of the file, in the tunnel's folder.
	joinedStatusFile = "status.json"
	// MaxJoined bounds the number of joined tunnels.
	MaxJoined = 8
	// joinPoll is the interval at which Join reads the status.
	joinPoll = 200 * time.Millisecond
)

// ErrNoAnswer reports that no agent has read the file yet.
var ErrNoAnswer = errors.New(
	"no agent has read it: does one run with this state folder? The next agent reads it when it starts",
)

// JoinedStatus is the agent's status of a bootstrap file.
type JoinedStatus struct {
	File      string `json:"file"` // hash of the file that the agent read
	Node      string `json:"node,omitempty"`
	Connected bool   `json:"connected"` // to the xds-server
	Error     string `json:"error,omitempty"`
}

// Joined is the result of Join.
type Joined struct {
	Name string // the argument of Leave
	Node string // node name of this edge in that tunnel
}

// Join adds a tunnel to the agent that runs with a state folder, and waits until the agent has a certificate for it.
// data is the tunnel's bootstrap file. Repeated calls for the same tunnel replace its file. If ctx ends first, Join
// returns an error and leaves the file: the agent continues to try.
func Join(ctx context.Context, stateDir string, data []byte) (Joined, error) {
	file, err := ParseBootstrapFile(data)
	if err != nil {
		return Joined{}, err
	}
	if err := file.Check(); err != nil {
		return Joined{}, err
	}
	root, err := openJoined(stateDir)
	if err != nil {
		return Joined{}, err
	}
	name, err := joinedName(root, file)
	if err != nil {
		return Joined{}, err
	}
	answer := filepath.Join(root, name, joinedStatusFile)
	if err := os.Remove(answer); err != nil && !errors.Is(err, os.ErrNotExist) {
		return Joined{}, fmt.Errorf("removing previous answer: %w", err)
	}
	path := filepath.Join(root, name+JoinedSuffix)
	if err := disk.Replace(path, data); err != nil {
		return Joined{}, err
	}
	if err := changeOwner(path, root); err != nil {
		return Joined{}, err
	}
	node, err := waitJoined(ctx, answer, Hash(data))
	return Joined{Name: name, Node: node}, err
}

// Leave reverts Join: the agent leaves the tunnel and removes its key.
func Leave(stateDir, name string) error {
	if !filepath.IsLocal(name) || strings.ContainsRune(name, filepath.Separator) {
		return fmt.Errorf("leaving tunnel: %q is not a name that edge-agent join printed", name)
	}
	if err := os.Remove(filepath.Join(stateDir, JoinedFolder, name+JoinedSuffix)); err != nil {
		return fmt.Errorf("leaving tunnel: %w", err)
	}
	return nil
}

// waitJoined waits until the agent reports a certificate for the file with this hash.
func waitJoined(ctx context.Context, answer, hash string) (node string, err error) {
	again := time.NewTicker(joinPoll)
	defer again.Stop()
	for why := ErrNoAnswer; ; {
		if current, err := readJoinedStatus(answer); err == nil && current.File == hash {
			switch {
			case current.Node != "":
				return current.Node, nil
			case current.Error != "":
				why = errors.New(current.Error)
			default:
				why = errors.New("the agent has read it, and has no certificate yet")
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for a certificate: %w", why)
		case <-again.C:
		}
	}
}

func readJoinedStatus(path string) (current JoinedStatus, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &current)
	}
	return current, err
}

// Check returns an error for a file that is not sufficient to enrol.
func (f BootstrapFile) Check() error {
	addresses := slices.Concat(f.Gateway, f.Gateways)
	switch {
	case f.Token == "":
		return errors.New("checking bootstrap file: it has no token")
	case len(addresses) == 0:
		return errors.New("checking bootstrap file: it names no gateway")
	}
	for _, a := range addresses {
		if _, err := model.ParseEndpoint(a); err != nil {
			return fmt.Errorf("checking bootstrap file: gateway: %w", err)
		}
	}
	if err := f.CheckRole(); err != nil {
		return err
	}
	if err := errors.Join(model.TunnelDomain(f.TunnelDomain).Validate(), model.ValidateID(f.ID)); err != nil {
		return fmt.Errorf("checking bootstrap file: %w", err)
	}
	if _, err := certs.Bundle(f.CA).Roots(); err != nil {
		return errors.New("checking bootstrap file: ca: it is not a certificate in PEM")
	}
	return nil
}

// Same reports whether two files are of the same tunnel of the same installation. Two installations may have the same
// tunnel domain, and a tunnel that moves has the same id in both; their CAs differ.
func (f BootstrapFile) Same(other BootstrapFile) bool {
	return f.ID == other.ID && f.TunnelDomain == other.TunnelDomain &&
		(f.CA == other.CA || certs.Bundle(f.CA).Overlaps(certs.Bundle(other.CA)))
}

// openJoined makes the folder of joined tunnels, with the owner of the state folder. An agent makes it when it starts.
func openJoined(stateDir string) (string, error) {
	if _, err := os.Stat(stateDir); err != nil {
		return "", fmt.Errorf("finding state folder of the running agent: %w: set --state-dir to its folder", err)
	}
	root := filepath.Join(stateDir, JoinedFolder)
	switch err := os.Mkdir(root, 0o700); {
	case errors.Is(err, os.ErrExist):
		return root, nil
	case err != nil:
		return "", fmt.Errorf("creating folder of joined tunnels: %w", err)
	}
	return root, changeOwner(root, stateDir)
}

// changeOwner changes the owner of a file that root has created to the owner of the folder, which is the agent's user.
func changeOwner(path, folder string) error {
	info, err := os.Stat(folder)
	if err != nil {
		return fmt.Errorf("finding owner of %s: %w", folder, err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	if err := os.Lchown(path, int(owner.Uid), int(owner.Gid)); err != nil {
		return fmt.Errorf("writing %s for the agent: %w", path, err)
	}
	return nil
}

// joinedName returns the name of the tunnel's existing file, or a new name.
func joinedName(root string, file BootstrapFile) (string, error) {
	names, err := JoinedNames(root)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if other, err := ReadBootstrapFile(filepath.Join(root, name+JoinedSuffix)); err == nil && file.Same(other) {
			return name, nil
		}
	}
	if len(names) >= MaxJoined {
		return "", fmt.Errorf(
			"joining tunnel: this edge has joined %d tunnels, the maximum: leave one of them with `edge-agent leave NAME`: %s",
			len(names),
			strings.Join(names, ", "),
		)
	}
	return file.TunnelDomain + "-" + Hash([]byte(file.ID+"\n"+file.CA)), nil
}

// JoinedNames returns the names of the joined tunnels in order; none if there is no folder.
func JoinedNames(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing joined tunnels: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), JoinedSuffix); ok && name != "" && e.Type().IsRegular() {
			names = append(names, name)
		}
	}
	return names, nil
}

// Hash returns a hash that is long enough to distinguish files. It need not be secret: a token in the data is too long
// to be guessed.
func Hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// WriteJoinedStatus writes the status of a file, unless it is unchanged.
func WriteJoinedStatus(dir string, s JoinedStatus) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("writing status of joined tunnel: %w", err)
	}
	path := filepath.Join(dir, joinedStatusFile)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating folder of joined tunnel: %w", err)
	}
	return disk.Replace(path, data)
}
