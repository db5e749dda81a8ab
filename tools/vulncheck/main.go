// Command vulncheck searches the code that the product's programs call for known vulnerabilities, with the version of
// govulncheck in go.mod. It exits with 0 if there are none, with 3 if there are some, with 4 if the database is not
// available and nothing was checked, and with 1 after any other failure. GOVULNDB names another database: a URL, or a
// folder as file:///path.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	defaultDatabase = "https://vuln.go.dev"
	// answerTime is how long the database may take to answer.
	answerTime = 20 * time.Second
	// failed, found and unavailable are exit codes. found is govulncheck's own code.
	failed, found, unavailable = 1, 3, 4
)

func main() {
	database := cmp.Or(os.Getenv("GOVULNDB"), defaultDatabase)
	os.Exit(check(database, os.Args[1:]))
}

// check runs govulncheck, and returns the exit code. The first argument is a folder, the others are packages.
func check(database string, args []string) int {
	if len(args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: vulncheck FOLDER PACKAGES...")
		return failed
	}
	modified, err := lastModified(database)
	if err != nil {
		fmt.Fprintf(os.Stderr, "vulncheck: NOTHING WAS CHECKED: the vulnerability database %s is not available: %v\n"+
			"vulncheck: run it where the database can be reached, or set GOVULNDB to a copy of it\n", database, err)
		return unavailable
	}
	fmt.Printf("vulncheck: the database %s is of %s\n", database, modified.Format(time.RFC3339))
	cmd := exec.Command("go", append([]string{"tool", "govulncheck", "-db", database, "-C", args[0]}, args[1:]...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "GOOS=linux")
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() == found:
		return found
	}
	fmt.Fprintln(os.Stderr, "vulncheck: running govulncheck:", err)
	return failed
}

// lastModified returns when a database was last modified.
func lastModified(database string) (time.Time, error) {
	u, err := url.Parse(database)
	if err != nil {
		return time.Time{}, err
	}
	body, err := open(u)
	if err != nil {
		return time.Time{}, err
	}
	defer body.Close()
	var index struct {
		Modified time.Time `json:"modified"`
	}
	if err := json.NewDecoder(io.LimitReader(body, 1<<20)).Decode(&index); err != nil || index.Modified.IsZero() {
		return time.Time{}, fmt.Errorf("its index/db.json is not that of a vulnerability database: %v", err)
	}
	return index.Modified, nil
}

// body is the body of an answer. Closing it also cancels the request.
type body struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b body) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// open opens index/db.json of a database.
func open(u *url.URL) (io.ReadCloser, error) {
	if u.Scheme == "file" {
		return os.Open(filepath.Join(u.Path, "index", "db.json"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath("index", "db.json").String(), http.NoBody)
	if err != nil {
		cancel()
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		cancel()
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		cancel()
		return nil, errors.Join(fmt.Errorf("it answers %s", response.Status), response.Body.Close())
	}
	return body{response.Body, cancel}, nil
}
