// Package e2e proves the promises of the product end to end: Fairlead's programs, real Envoys, real apiservers and
// Cluster API's real manager run in three network namespaces. The names of its tests are the promises.
//
// TestMain builds one lab for all tests. A new promise is a function with a world and a test as parameters. Add it to
// the list of the test that proves its part of the product.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/workspace"
	"github.com/fairlead/fairlead/test/promise"
)

// domain is so long that the longest possible names of a Cluster and a namespace make a hostname that is too long.
var domain = model.TunnelDomain(
	"tunnels." + strings.Repeat("long", 15) + "." + strings.Repeat("domain", 8) + ".example.test",
)

// installation is the lab that all tests share; nil if the tests cannot run here.
var installation *lab.Lab

func TestMain(m *testing.M) {
	os.Exit(runAll(m))
}

// runAll builds the lab, runs the tests and prints the result. It also cleans up after Ctrl-C.
func runAll(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if reason := whyNot(); reason != "" && os.Getenv("E2E_REQUIRED") == "" {
		fmt.Println("skipping all end-to-end tests:", reason)
		return 0
	}
	start := time.Now()
	l, err := buildLab(ctx)
	if err != nil {
		fmt.Println("building the lab:", err)
		return 1
	}
	promise.Measured("lab_s", time.Since(start).Seconds())
	installation = l
	finished := context.AfterFunc(ctx, func() {
		l.Close(context.WithoutCancel(ctx))
		os.Exit(1)
	})
	code := m.Run()
	finished()
	if code != 0 {
		keepLogs(l)
	}
	l.Close(context.Background())
	promise.Measured("total_s", time.Since(start).Seconds())
	fmt.Println(promise.Summary("verify main"))
	return code
}

// whyNot returns why the tests cannot run here, or an empty string if they can.
func whyNot() string {
	if os.Geteuid() != 0 {
		return "making network namespaces needs root"
	}
	if _, err := workspace.FindParts(); err != nil {
		return err.Error()
	}
	return ""
}

func buildLab(ctx context.Context) (*lab.Lab, error) {
	var names []string
	for _, cluster := range servedBySNI {
		names = append(names, hostname(cluster))
	}
	l, err := lab.New(
		ctx, lab.Options{TunnelDomain: string(domain), ServingNames: append(names, berlinExtraName), GatewayPod: true},
	)
	if err != nil {
		return nil, err
	}
	// Before the Cluster exists, because the controller resolves a hostname when it first observes it.
	err = l.Network.AddGatewayAlias(hostname("paris"))
	if err == nil {
		err = l.Start(ctx)
	}
	if err != nil {
		keepLogs(l)
		l.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return l, nil
}

func keepLogs(l *lab.Lab) {
	if folder, err := l.KeepLogs(); err == nil {
		fmt.Println("the logs of all processes are in", folder)
	}
}

// hostname returns the tunnel hostname of a Cluster in the tests' namespace.
func hostname(cluster string) string {
	name, err := domain.Hostname(model.Key{Namespace: namespace, Name: cluster})
	if err != nil {
		panic(err) // the input is constant
	}
	return name
}
