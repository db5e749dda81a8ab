// Command guest is the program of Pods in tests. It serves HTTP, sends a request, opens connections, uses memory, or
// prints the state of its process.
package main

import (
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
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("want serve ADDRESS, get URL, dial ADDRESSES, eat MIB or status FIELD")
	}
	switch value := args[1]; args[0] {
	case "serve":
		return serve(value)
	case "get":
		return get(value)
	case "dial":
		dial(strings.Split(value, ","))
		return nil
	case "eat":
		return eat(value)
	case "status":
		return status(value)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// requestTime bounds one request.
const requestTime = 5 * time.Second

// serve answers every request with the name of the Pod, until SIGTERM.
func serve(address string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
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
	_, _ = fmt.Println("serving", address)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// get prints the answer to a request.
func get(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(os.Stdout, io.LimitReader(response.Body, 1<<10))
	return err
}

// dial opens connections at the same time and closes them. It prints each address with what happened: open, closed,
// which is a rejected connection, or none, if there was no answer.
func dial(addresses []string) {
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
				results[i] = "open"
			case errors.Is(err, syscall.ECONNREFUSED):
				results[i] = "closed"
			case os.IsTimeout(err):
				results[i] = "none"
			default:
				results[i] = err.Error()
			}
		})
	}
	group.Wait()
	for i, address := range addresses {
		_, _ = fmt.Println(address, results[i])
	}
}

// eat uses memory, page by page.
func eat(mib string) error {
	n, err := strconv.Atoi(mib)
	if err != nil {
		return err
	}
	memory := make([]byte, n<<20)
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	_, _ = fmt.Println(len(memory), "bytes used")
	return nil
}

// status prints a field of the process's own status, as proc_pid_status(5) has it.
func status(field string) error {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			_, _ = fmt.Println(strings.TrimSpace(value))
			return nil
		}
	}
	return fmt.Errorf("no field %q", field)
}
