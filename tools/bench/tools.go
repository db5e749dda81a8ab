//go:build tools

// Package tools imports programs of other modules, so that go.mod keeps them.
package tools

import (
	_ "sigs.k8s.io/apiserver-network-proxy/cmd/agent/app"
	_ "sigs.k8s.io/apiserver-network-proxy/cmd/server/app"
)
