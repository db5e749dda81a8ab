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
	// JoinedFolder holds, in the state folder, the bootstrap files of tunnels that an edge was given while it ran: NAME.yaml. What
	// belongs to each is in a folder NAME beside it.
	JoinedFolder = "joined"
	// JoinedSuffix ends the names of those files.
	JoinedSuffix = ".yaml"
	// joinedStatusFile is where the agent says, in that folder, what became of the file.
	joinedStatusFile = "status.json"
	// MaxJoined bounds how many there are.
	MaxJoined = 8
	// joinPoll is how often Join looks for the answer.
	joinPoll = 200 * time.Millisecond
)

// ErrNoAnswer is an answer that is not there yet.
var ErrNoAnswer = errors.New("no agent has read it: does one run with this state folder? The next agent reads it when it starts")

// JoinedStatus is what the agent says of a file that it found.
type JoinedStatus struct {
	File      string `json:"file"` // hash of what it read
	Node      string `json:"node,omitempty"`
	Connected bool   `json:"connected"` // to the xds-server
	Error     string `json:"error,omitempty"`
}

// Joined is what Join came to.
type Joined struct {
	Name string // by which Leave takes it back
	Node string // the node name of this edge in that tunnel
}

// Join gives the agent that runs with a state folder one more tunnel, whose bootstrap file data is, and waits until the agent has
// a certificate for it. What is given once more counts as given. The file stays when ctx ends before: the agent goes on trying.
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
	if err := giveAway(path, root); err != nil {
		return Joined{}, err
	}
	node, err := waitJoined(ctx, answer, Hash(data))
	return Joined{Name: name, Node: node}, err
}

// Leave takes back what Join gave: the agent leaves that tunnel, and forgets its key.
func Leave(stateDir, name string) error {
	if !filepath.IsLocal(name) || strings.ContainsRune(name, filepath.Separator) {
		return fmt.Errorf("leaving tunnel: %q is not a name that edge-agent join printed", name)
	}
	if err := os.Remove(filepath.Join(stateDir, JoinedFolder, name+JoinedSuffix)); err != nil {
		return fmt.Errorf("leaving tunnel: %w", err)
	}
	return nil
}

// waitJoined waits until the agent says that it has a certificate by the file with this hash.
func waitJoined(ctx context.Context, answer, hash string) (node string, err error) {
	again := time.NewTicker(joinPoll)
	defer again.Stop()
	for why := ErrNoAnswer; ; {
		if said, err := readJoinedStatus(answer); err == nil && said.File == hash {
			switch {
			case said.Node != "":
				return said.Node, nil
			case said.Error != "":
				why = errors.New(said.Error)
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

func readJoinedStatus(path string) (said JoinedStatus, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &said)
	}
	return said, err
}

// Check returns an error for a file by which no edge can enrol.
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
	if err := errors.Join(model.TunnelDomain(f.TunnelDomain).Validate(), model.ValidateID(f.ID)); err != nil {
		return fmt.Errorf("checking bootstrap file: %w", err)
	}
	if _, err := certs.Bundle(f.CA).Roots(); err != nil {
		return errors.New("checking bootstrap file: ca: it is not a certificate in PEM")
	}
	return nil
}

// Same says whether two files are of one tunnel of one installation. Two installations may have one tunnel domain, and a tunnel
// that moves has one id in both; their CAs tell them apart.
func (f BootstrapFile) Same(other BootstrapFile) bool {
	return f.ID == other.ID && f.TunnelDomain == other.TunnelDomain && (f.CA == other.CA || certs.Bundle(f.CA).Overlaps(certs.Bundle(other.CA)))
}

// openJoined makes the folder of joined tunnels, of the owner of the state folder: an agent makes it when it starts.
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
	return root, giveAway(root, stateDir)
}

// giveAway makes a file that root has made that of the agent, whom the folder belongs to.
func giveAway(path, folder string) error {
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

// joinedName is the name under which a file is known already, or a new one.
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
		return "", fmt.Errorf("joining tunnel: this edge has joined %d tunnels, the maximum: leave one of them with `edge-agent leave NAME`: %s", len(names), strings.Join(names, ", "))
	}
	return file.TunnelDomain + "-" + Hash([]byte(file.ID+"\n"+file.CA)), nil
}

// JoinedNames are the names of the files that there are, in order; none if there is no folder.
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

// Hash is enough of a hash to tell files apart. It is no secret: a token in what is hashed is too long to be guessed.
func Hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// WriteJoinedStatus says what became of a file, if that is not said already.
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
