package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/httpbasic"
	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/v1/nodes"
	"github.com/stmcginnis/gofish"
	redfishapi "github.com/stmcginnis/gofish/redfish"
)

// Credentials that the stand-ins of the test accept.
const user, password = "lab", "lab"

// server parses the flags of a client, and returns the URL of its server, and an HTTP client that trusts only the CA of
// -ca. It uses the proxy of the environment, as http.DefaultTransport does.
func server(name string, args []string) (url string, c *http.Client, err error) {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.StringVar(&url, "url", "", "of the server")
	ca := flags.String("ca", "", "file with the CA of the server, in PEM")
	if err := flags.Parse(args); err != nil {
		return "", nil, err
	}
	pem, err := os.ReadFile(*ca)
	if err != nil {
		return "", nil, fmt.Errorf("reading -ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return "", nil, errors.New("-ca has no certificate")
	}
	return url, &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			Proxy:           http.ProxyFromEnvironment,
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		},
	}, nil
}

// ironic lists the nodes of an Ironic, and powers the first one on.
func ironic(ctx context.Context, args []string) error {
	url, c, err := server("ironic", args)
	if err != nil {
		return err
	}
	client, err := httpbasic.NewBareMetalHTTPBasic(httpbasic.EndpointOpts{
		IronicEndpoint: url, IronicUser: user, IronicUserPassword: password,
	})
	if err != nil {
		return err
	}
	client.HTTPClient = *c
	client.Microversion = "1.81"
	pages, err := nodes.List(client, nodes.ListOpts{}).AllPages(ctx)
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	all, err := nodes.ExtractNodes(pages)
	if err != nil || len(all) == 0 {
		return fmt.Errorf("no nodes: %w", err)
	}
	power := nodes.PowerStateOpts{Target: nodes.PowerOn}
	if err := nodes.ChangePowerState(ctx, client, all[0].UUID, power).ExtractErr(); err != nil {
		return fmt.Errorf("powering %s on: %w", all[0].Name, err)
	}
	fmt.Println("Ironic powers on:", all[0].Name)
	return nil
}

// redfish opens a session at a BMC, and restarts its first system.
func redfish(ctx context.Context, args []string) error {
	url, c, err := server("redfish", args)
	if err != nil {
		return err
	}
	client, err := gofish.ConnectContext(ctx, gofish.ClientConfig{
		Endpoint: url, Username: user, Password: password, HTTPClient: c,
	})
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer client.Logout()
	systems, err := client.Service.Systems()
	if err != nil || len(systems) == 0 {
		return fmt.Errorf("no systems: %w", err)
	}
	if err := systems[0].Reset(redfishapi.ForceRestartResetType); err != nil {
		return fmt.Errorf("restarting %s: %w", systems[0].Name, err)
	}
	fmt.Println("the BMC restarts:", systems[0].Name)
	return nil
}
