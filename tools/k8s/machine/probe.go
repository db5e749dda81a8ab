package main

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probe keeps the container's readiness current. A container without a readiness probe is ready while it runs. Liveness
// and startup probes are not supported; a container that exits is restarted anyway.
func (c *container) probe(ctx context.Context) {
	p := c.spec.ReadinessProbe
	if p == nil {
		return
	}
	timeout := time.Duration(max(p.TimeoutSeconds, 1)) * time.Second
	// Each second, whatever the configured period: tests wait for it.
	for pause(ctx, time.Second) {
		probing, cancel := context.WithTimeout(ctx, timeout)
		ok := c.check(probing, &p.ProbeHandler)
		cancel()
		c.setReady(ok)
	}
}

func (c *container) check(ctx context.Context, h *corev1.ProbeHandler) bool {
	switch {
	case h.HTTPGet != nil:
		return c.checkHTTP(ctx, h.HTTPGet)
	case h.TCPSocket != nil:
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.target(h.TCPSocket.Host, h.TCPSocket.Port))
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	case h.Exec != nil:
		cmd, err := c.command(ctx, h.Exec.Command)
		return err == nil && cmd.Run() == nil
	}
	return true
}

// prober does not verify certificates, like the kubelet, and keeps no connections.
var prober = &http.Client{
	Transport: &http.Transport{
		TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true,
		}, //nolint:gosec // a health check of a process on the same machine
		DisableKeepAlives: true,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func (c *container) checkHTTP(ctx context.Context, get *corev1.HTTPGetAction) bool {
	scheme := strings.ToLower(string(get.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	url := scheme + "://" + c.target(get.Host, get.Port) + "/" + strings.TrimPrefix(get.Path, "/")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	for _, h := range get.HTTPHeaders {
		request.Header.Add(h.Name, h.Value)
	}
	response, err := prober.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode >= 200 && response.StatusCode < 400
}

// target returns the address that a probe connects to. The port may be the name of a container port.
func (c *container) target(host string, port intstr.IntOrString) string {
	if host == "" {
		host = c.pod.config.Address
	}
	number := port.IntValue()
	for _, p := range c.spec.Ports {
		if port.Type == intstr.String && p.Name == port.StrVal {
			number = int(p.ContainerPort)
		}
	}
	return net.JoinHostPort(host, strconv.Itoa(number))
}
