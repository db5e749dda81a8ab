package main

import "testing"

func TestMemoryBoundsTheConnectionsOfEdges(t *testing.T) {
	for memory, want := range map[uint64]int{
		0:          0,     // controlchannel's own bound
		64 << 20:   1000,  // too little, and some edges are served
		450 << 20:  1000,  // just less than 1,000 connections
		1 << 30:    12288, // 6,000 edges
		1932735283: 28419, // 0.9 of 2 GiB, the limit in the manifests: 14,000 edges
	} {
		if got := edgeConnections(memory); got != want {
			t.Errorf("%d bytes: %d connections, want %d", memory, got, want)
		}
	}
}
