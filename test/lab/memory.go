package lab

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/test/lab/proc"
)

// Memory is the resident memory of one process.
type Memory struct {
	Name  string
	Bytes uint64
}

// Memory measures every process of ours, in the order of their names. Of several of a kind it measures the oldest.
func (l *Lab) Memory() ([]Memory, error) {
	agents := map[string]*Agent{"gateway": l.Gateways[0]}
	if edge := l.firstEdge(); edge != nil {
		agents["edge"] = edge
	}
	pids := map[string]int{"controller": l.Controller.Process().PID(), "xds_server": l.XDSServers[0].Process().PID()}
	for name, agent := range agents {
		envoy, err := agent.EnvoyPID()
		if err != nil {
			return nil, fmt.Errorf("measuring %s: %w", name, err)
		}
		pids[name+"_agent"], pids[name+"_envoy"] = agent.Process().PID(), envoy
	}
	var all []Memory
	for _, name := range slices.SortedFunc(maps.Keys(pids), strings.Compare) {
		bytes, err := proc.RSS(pids[name])
		if err != nil {
			return nil, fmt.Errorf("measuring %s: %w", name, err)
		}
		all = append(all, Memory{name, bytes})
	}
	return all, nil
}

func (l *Lab) firstEdge() *Agent {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.edges) == 0 {
		return nil
	}
	return l.edges[0]
}
