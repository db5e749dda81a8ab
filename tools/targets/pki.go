package main

import (
	"context"
	stdx509 "crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
)

// Files that talosPKI writes.
const (
	talosconfigFile = "talosconfig"
	osCAFile        = "ca.crt"
	apidCertificate = "apid.crt"
	apidKey         = "apid.key"
)

// talosPKI makes the secrets of a cluster, the talosconfig of its administrator, and the certificate of the apid of its
// machines, with the names in the certSANs of the machine configuration that Talos' own code generates.
func talosPKI(_ context.Context, args []string) error {
	flags := flag.NewFlagSet("talos-pki", flag.ContinueOnError)
	dir := flags.String("dir", "", "folder for the files")
	addresses := flags.String("addresses", "", "addresses of the machines, with commas")
	names := flags.String("names", "", "certSANs of the machine configuration, with commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" || *addresses == "" {
		return errors.New("-dir and -addresses are needed")
	}
	bundle, err := secrets.NewBundle(secrets.NewFixedClock(time.Now().Add(-time.Minute)), nil)
	if err != nil {
		return fmt.Errorf("making the secrets: %w", err)
	}
	input, err := generate.NewInput("lab", "https://192.0.2.1:6443", "1.35.0",
		generate.WithSecretsBundle(bundle), generate.WithAdditionalSubjectAltNames(list(*names)))
	if err != nil {
		return fmt.Errorf("generating the machine configuration: %w", err)
	}
	talosconfig, err := input.Talosconfig()
	if err != nil {
		return fmt.Errorf("generating the talosconfig: %w", err)
	}
	text, err := talosconfig.Bytes()
	if err != nil {
		return err
	}
	config, err := input.Config(machine.TypeControlPlane)
	if err != nil {
		return fmt.Errorf("generating the machine configuration: %w", err)
	}
	pair, err := certificate(bundle, list(*addresses), config.Machine().Security().CertSANs())
	if err != nil {
		return fmt.Errorf("making the certificate of apid: %w", err)
	}
	return errors.Join(
		os.MkdirAll(*dir, 0o700),
		os.WriteFile(filepath.Join(*dir, talosconfigFile), text, 0o600),
		os.WriteFile(filepath.Join(*dir, osCAFile), bundle.Certs.OS.Crt, 0o600),
		os.WriteFile(filepath.Join(*dir, apidCertificate), pair.CrtPEM, 0o600),
		os.WriteFile(filepath.Join(*dir, apidKey), pair.KeyPEM, 0o600),
	)
}

// certificate is signed by the CA of Talos' API.
func certificate(bundle *secrets.Bundle, addresses, names []string) (*x509.KeyPair, error) {
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(bundle.Certs.OS)
	if err != nil {
		return nil, err
	}
	var ips []net.IP
	for _, address := range addresses {
		ips = append(ips, net.ParseIP(address))
	}
	return x509.NewKeyPair(ca,
		x509.CommonName("apid"), x509.IPAddresses(ips), x509.DNSNames(names),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}),
		x509.NotBefore(time.Now().Add(-time.Minute)), x509.NotAfter(time.Now().Add(time.Hour)),
	)
}

// list splits a value with commas; an empty one has no entries.
func list(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
}
