package fleet

import (
	"bufio"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
)

// liveTunnels returns the usual tunnels that a gateway has according to its events: their workers by the edge's
// address.
func liveTunnels(gateway *lab.Agent) (map[netip.AddrPort]int, error) {
	return tunnelsOf(gateway, func(node string) bool { return !strings.HasSuffix(node, model.LaneMark) })
}

// liveLanes returns how many tunnels of lanes a gateway has.
func liveLanes(gateway *lab.Agent) (int, error) {
	live, err := tunnelsOf(gateway, func(node string) bool { return strings.HasSuffix(node, model.LaneMark) })
	return len(live), err
}

func tunnelsOf(gateway *lab.Agent, is func(node string) bool) (map[netip.AddrPort]int, error) {
	file, err := os.Open(filepath.Join(gateway.StateDir, "tunnels.log"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	live := map[netip.AddrPort]int{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var e struct {
			Owner  string         `json:"owner"`
			Peer   netip.AddrPort `json:"peer"`
			Event  string         `json:"event"`
			Node   string         `json:"node"`
			Worker string         `json:"worker"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // the line is still being written
		}
		if !is(e.Node) {
			continue
		}
		switch e.Event {
		case "tunnel_setup":
			if live[e.Peer], err = strconv.Atoi(strings.TrimPrefix(e.Worker, "worker_")); err != nil {
				return nil, err
			}
		case "tunnel_closed":
			delete(live, e.Peer)
		}
	}
	return live, nil
}
