package hub

import (
	"time"

	"github.com/fairlead/fairlead/internal/limit"
)

// maxTunnelEdges is how many edges of one tunnel a hub stores: ten times the 100 of a Tunnel's status, so that one
// tunnel cannot displace others.
const maxTunnelEdges = 1024

// linesRate bounds the log lines that the edges of one tunnel cause by connecting and disconnecting.
var linesRate = limit.Rate{Every: 2 * time.Second, Burst: 2000}

// addEdge makes room for one more edge and returns it; nil: there is no room. If its tunnel has too many, the edge that
// is away for longest is removed.
func (h *Hub) addEdge(key pair) *edge {
	away := func(e *edge) presence { return e.presence }
	if h.ofTunnel[key.id] >= maxTunnelEdges {
		own := map[pair]*edge{}
		for p, e := range h.edges {
			if p.id == key.id {
				own[p] = e
			}
		}
		if gone, ok := longestAway(own, away); ok {
			h.dropEdge(gone)
		} else {
			return nil
		}
	}
	if len(h.edges) >= maxEdges {
		gone, ok := longestAway(h.edges, away)
		if !ok {
			return nil
		}
		h.dropEdge(gone)
	}
	e := &edge{}
	h.edges[key] = e
	h.ofTunnel[key.id]++
	return e
}

// dropEdge removes an edge.
func (h *Hub) dropEdge(key pair) {
	delete(h.edges, key)
	if h.ofTunnel[key.id]--; h.ofTunnel[key.id] <= 0 {
		delete(h.ofTunnel, key.id)
	}
}

// note logs that an edge or a gateway has connected or disconnected. A log may block, so the caller must not hold the
// lock.
func (h *Hub) note(message string, s *session) {
	if s.subject.ID == "" || h.lines.Take(s.subject.ID, linesRate) == 0 {
		h.log.Info(message, "role", s.subject.Role, "node", s.subject.Node)
	}
}
