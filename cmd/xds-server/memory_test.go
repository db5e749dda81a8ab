package main

import "testing"

func TestMemoryBoundsTheConnectionsOfEdges(t *testing.T) {
	for memory, want := range map[uint64]int{
		0:          0,    // controlchannel's own bound
		64 << 20:   1000, // too little, and some edges are served
		490 << 20:  1000, // just less than 1,000 connections
		1 << 30:    6656,
		1932735283: 15394, // 0.9 of 2 GiB, the limit in the manifests
	} {
		if got := edgeConnections(memory); got != want {
			t.Errorf("%d bytes: %d connections, want %d", memory, got, want)
		}
	}
}
