package netpolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// podDevice is the network device of a Pod. Each Pod has a record of its loopback device as well.
const podDevice = "eth0"

// record is the network of one Pod, as its node has recorded it.
type record struct {
	node      string
	pod       types.UID
	addresses []netip.Addr
}

// records has the networks of all Pods of a cluster by their files. The runtime writes a file before it starts a
// container of the Pod, and removes it after the last one has ended. The apiserver has the addresses only later.
type records map[string]record

// update reads new files in the folders of nodes, and removes records whose files are gone. It reports whether there
// were any.
func (r records) update(folders map[string]string) (changed bool, err error) {
	present := map[string]bool{}
	var errs []error
	for node, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, entry := range entries {
			if !strings.HasSuffix(entry.Name(), "-"+podDevice) {
				continue
			}
			file := filepath.Join(folder, entry.Name())
			present[file] = true
			if _, known := r[file]; known {
				continue
			}
			// A file that is not complete yet is read again in the next round.
			if data, err := os.ReadFile(file); err == nil && json.Valid(data) {
				found, err := parseRecord(node, data)
				errs = append(errs, err)
				r[file], changed = found, true
			}
		}
	}
	for file := range r {
		if !present[file] {
			delete(r, file)
			changed = true
		}
	}
	return changed, errors.Join(errs...)
}

// parseRecord reads what the library of the container network interface (CNI) writes about a network.
func parseRecord(node string, data []byte) (record, error) {
	var content struct {
		Args   [][2]string `json:"cniArgs"`
		Result struct {
			IPs []struct {
				Address netip.Prefix `json:"address"`
			} `json:"ips"`
		} `json:"result"`
	}
	if err := json.Unmarshal(data, &content); err != nil {
		return record{}, fmt.Errorf("reading the network of a Pod: %w", err)
	}
	r := record{node: node}
	for _, arg := range content.Args {
		if arg[0] == "K8S_POD_UID" {
			r.pod = types.UID(arg[1])
		}
	}
	for _, ip := range content.Result.IPs {
		r.addresses = append(r.addresses, ip.Address.Addr())
	}
	if r.pod == "" || len(r.addresses) == 0 {
		return record{}, fmt.Errorf("the network of a Pod has no UID or no address: %s", data)
	}
	return r, nil
}
