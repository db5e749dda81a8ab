package path

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// serverName is a name in the certificate of the simulated apiserver, and a name that gateways serve.
const serverName = "c1.prod.tunnels.example.com"

// Serve simulates an apiserver until the context ends. It uses Go's HTTP and TLS servers, as kube-apiserver does, with
// RSA keys of 2048 bits and client certificates, as kubeadm makes them. It writes its address to the file address in
// the folder with its certificates.
func Serve(ctx context.Context, dir string) error {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key"))
	if err != nil {
		return err
	}
	roots, err := pool(dir)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /small", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 200)) })
	mux.HandleFunc("GET /bytes/{n}", sendBytes)
	mux.HandleFunc("GET /watch", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: patience, TLSConfig: &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
	}}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	temporary := filepath.Join(dir, "address.new")
	if err := os.WriteFile(temporary, []byte(listener.Addr().String()), 0o600); err != nil {
		return err
	}
	if err := os.Rename(temporary, filepath.Join(dir, "address")); err != nil {
		return err
	}
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// sendBytes sends as many bytes as requested, in pieces that cost as little as possible.
func sendBytes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
	if err != nil {
		http.Error(w, "how many bytes?", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	piece := make([]byte, 256<<10)
	for n > 0 {
		written, err := w.Write(piece[:min(n, int64(len(piece)))])
		if err != nil {
			return
		}
		n -= int64(written)
	}
}

func pool(dir string) (*x509.CertPool, error) {
	data, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(dir, "ca.crt"))
	}
	return roots, nil
}

// writeCertificates writes an RSA CA and its key pairs server and client into a folder.
func writeCertificates(dir string) error {
	caKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(
			1,
		), Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(
			24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if err := writePair(dir, "ca", ca, ca, caKey, caKey); err != nil {
		return err
	}
	for i, name := range []string{"server", "client"} {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			return err
		}
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(
				int64(i + 2),
			), Subject: pkix.Name{CommonName: name}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
			DNSNames: []string{
				serverName,
				"localhost",
			}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		if err := writePair(dir, name, leaf, ca, key, caKey); err != nil {
			return err
		}
	}
	return nil
}

func writePair(dir, name string, leaf, parent *x509.Certificate, key, signer *rsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, leaf, parent, key.Public(), signer)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(
			filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600,
		),
	)
}
