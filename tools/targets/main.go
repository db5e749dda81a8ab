// Command named-targets has clients of the kinds that named targets of RemoteNetworks are for, so that a test can run
// them in its networks: for Talos' apid, Ironic and Redfish, with the libraries that controllers use. It also has a
// stand-in for apid, which serves the API of Talos' own definitions with Talos' own PKI. It is a separate module, so
// that the product does not depend on these libraries. It knows nothing of Fairlead.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// commands are the first argument.
var commands = map[string]func(context.Context, []string) error{
	"talos-pki":      talosPKI,
	"talos-apid":     talosAPID,
	"talos-provider": talosProvider,
	"ironic":         ironic,
	"redfish":        redfish,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "named-targets:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || commands[args[0]] == nil {
		return fmt.Errorf("want one of the commands of main.go as the first argument, have %q", args)
	}
	return commands[args[0]](ctx, args[1:])
}
