package metrics

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/fairlead/fairlead/test/world"
)

// accessLine is a line of an Envoy's access log.
type accessLine struct {
	Log, Listener, Time, Client, SNI, Authority, Tunnel, Edge, Gateway string

	In, Out, Duration float64
}

// accessLogged returns a condition that is nil once there are lines about connections to a member by both routes, and
// about a connection of an edge.
func accessLogged(s *world.World, m *world.Member) func(context.Context) error {
	return func(context.Context) error {
		seen := map[string]accessLine{}
		for _, name := range []string{"gateway-0", "gateway-1", "edge"} {
			lines, err := accessLines(s.LogFile(name))
			if err != nil {
				return err
			}
			for _, l := range lines {
				// A gateway that forwards a client to another one does not know the edge.
				if l.In > 0 && l.Out > 0 && seen[l.Listener].Edge == "" {
					seen[l.Listener] = l
				}
			}
		}
		var errs []error
		for listener, right := range map[string]func(accessLine) bool{
			"apiserver": func(l accessLine) bool { return l.SNI == m.Hostname && l.Tunnel == m.Hostname },
			"connect":   func(l accessLine) bool { return strings.HasPrefix(l.Authority, m.Hostname) && l.Tunnel == m.Hostname },
			"tunnel":    func(l accessLine) bool { return strings.HasPrefix(l.Authority, m.Hostname) && l.Gateway != "" },
		} {
			if l := seen[listener]; !right(l) || l.Log != "access" || l.Time == "" {
				errs = append(errs, fmt.Errorf("%s has %+v", listener, l))
			}
		}
		for _, listener := range []string{"apiserver", "connect"} {
			if l := seen[listener]; !strings.HasPrefix(l.Edge, "CN=edge-") {
				errs = append(errs, fmt.Errorf("%s does not know the edge: %+v", listener, l))
			}
		}
		return errors.Join(errs...)
	}
}

func accessLines(path string) ([]accessLine, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var all []accessLine
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		if !strings.Contains(scanner.Text(), `"log":"access"`) {
			continue
		}
		var raw struct {
			accessLine

			In       float64 `json:"bytes_in"`
			Out      float64 `json:"bytes_out"`
			Duration float64 `json:"duration_ms"`
		}
		if err := json.Unmarshal(scanner.Bytes(), &raw); err != nil {
			return nil, fmt.Errorf("%w: %s", err, scanner.Text())
		}
		l := raw.accessLine
		l.In, l.Out, l.Duration = raw.In, raw.Out, raw.Duration
		all = append(all, l)
	}
	return all, nil
}
