// Command guest is the program of Pods in tests. It serves HTTP, sends a request, opens connections, uses memory,
// prints its environment or the state of its process, asks the apiserver of its Cluster, decides as a webhook, or
// serves the metrics of all Nodes as an aggregated API.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/test/hosted/extension"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

// printing are the commands that print a text about their argument.
var printing = map[string]func(string) (string, error){
	"env":    func(name string) (string, error) { return os.Getenv(name), nil },
	"get":    func(url string) (string, error) { return text(http.DefaultTransport, url, "") },
	"dial":   func(addresses string) (string, error) { return dial(strings.Split(addresses, ",")), nil },
	"eat":    eat,
	"status": status,
	"api":    api,
}

// serving are the commands that serve.
var serving = map[string]func(string) error{
	"serve":   serve,
	"webhook": func(reason string) error { return serveTLS(":9443", extension.Deny(reason)) },
	"metrics": func(address string) error { return serveTLS(address, metrics()) },
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("want a command and its argument")
	}
	if command := serving[args[0]]; command != nil {
		return command(args[1])
	}
	command := printing[args[0]]
	if command == nil {
		return fmt.Errorf("unknown command %q", args[0])
	}
	out, err := command(args[1])
	if err == nil {
		_, err = io.WriteString(os.Stdout, out+"\n")
	}
	return err
}

// requestTime bounds one request.
const requestTime = 5 * time.Second

// serve answers every request with the name of the Pod, or of its Node if it is in the environment, until SIGTERM.
func serve(address string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	name = cmp.Or(os.Getenv("NODE"), name)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server := &http.Server{
		Addr: address, ReadHeaderTimeout: requestTime,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }),
	}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	_, _ = fmt.Println("serving", name, "at", address)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serveTLS serves with the certificate in /tls.
func serveTLS(address string, handler http.Handler) error {
	server := &http.Server{Addr: address, ReadHeaderTimeout: requestTime, Handler: handler}
	return server.ListenAndServeTLS("/tls/tls.crt", "/tls/tls.key")
}

// text returns the answer to a request, with a bearer token if it is not empty.
func text(transport http.RoundTripper, url, token string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %.200s", url, response.Status, data)
	}
	return string(data), err
}

// dial opens connections at the same time and closes them. It returns a line for each address with what happened: open,
// closed, which is a rejected connection, or none, if there was no answer.
func dial(addresses []string) string {
	results := make([]string, len(addresses))
	var group sync.WaitGroup
	for i, address := range addresses {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), requestTime)
			defer cancel()
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			switch {
			case err == nil:
				_ = conn.Close()
				results[i] = address + " open"
			case errors.Is(err, syscall.ECONNREFUSED):
				results[i] = address + " closed"
			case os.IsTimeout(err):
				results[i] = address + " none"
			default:
				results[i] = address + " " + err.Error()
			}
		})
	}
	group.Wait()
	return strings.Join(results, "\n")
}

// eat uses memory, page by page.
func eat(mib string) (string, error) {
	n, err := strconv.Atoi(mib)
	if err != nil {
		return "", err
	}
	memory := make([]byte, n<<20)
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	return fmt.Sprint(len(memory), " bytes used"), nil
}

// status returns a field of the process's own status, as proc_pid_status(5) has it.
func status(field string) (string, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("no field %q", field)
}
