// Command coredns is CoreDNS for tests, with the plugins that deploy/dns needs, one that simulates a cluster's own
// names, and the ones of a real cluster's DNS.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/rewrite"
)

func main() {
	// The order of the plugins is that of CoreDNS's plugin.cfg.
	dnsserver.Directives = []string{"bind", "ready", "errors", "rewrite", "cache", "hosts", "kubernetes", "forward"}
	coremain.Run()
}
