package envoyadmin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"
)

const (
	// dumpTimeout bounds a dump of the whole configuration: Envoy's main thread writes about 10,000 Envoy clusters in a
	// second.
	dumpTimeout = 15 * time.Second
	// maxConfigDump exceeds the size of a dump.
	maxConfigDump = 256 << 20
)

// dumped are the parts of Envoy's configuration that a dump includes: what came by xDS. Secrets are in other parts,
// which are never requested.
var dumped = []string{"dynamic_active_clusters", "dynamic_warming_clusters", "dynamic_listeners"}

var errDump = errors.New("reading Envoy's config_dump: unexpected format")

// ConfigDump writes {"configs": [...]} with the resources whose names are wanted. Envoy redacts the fields that its
// API marks as sensitive.
func (a Client) ConfigDump(ctx context.Context, wanted func(name string) bool, to io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, dumpTimeout)
	defer cancel()
	if _, err := io.WriteString(to, `{"configs":[`); err != nil {
		return err
	}
	first := true
	for _, part := range dumped {
		err := a.configPart(ctx, part, func(entry json.RawMessage) error {
			if !wanted(entryName(entry)) {
				return nil
			}
			if !first {
				entry = slices.Concat([]byte{','}, entry)
			}
			first = false
			_, err := to.Write(entry)
			return err
		})
		if err != nil {
			return err
		}
	}
	_, err := io.WriteString(to, `]}`)
	return err
}

// entryName returns the name of a listener or an Envoy cluster in a config_dump.
func entryName(entry json.RawMessage) string {
	var named struct {
		Name    string
		Cluster struct{ Name string }
	}
	if json.Unmarshal(entry, &named) != nil {
		return ""
	}
	if named.Name != "" {
		return named.Name
	}
	return named.Cluster.Name
}

// configPart calls take for each entry of one part. It does not hold all entries in memory.
func (a Client) configPart(ctx context.Context, part string, take func(json.RawMessage) error) error {
	path := "/config_dump?resource=" + url.QueryEscape(part)
	response, err := a.open(ctx, http.MethodGet, path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil // this Envoy has none
	default:
		return fmt.Errorf("querying Envoy for %s: status %d", path, response.StatusCode)
	}
	decoder := json.NewDecoder(io.LimitReader(response.Body, maxConfigDump))
	for _, want := range []json.Token{json.Delim('{'), "configs", json.Delim('[')} {
		token, err := decoder.Token()
		switch {
		case err != nil:
			return fmt.Errorf("querying Envoy for %s: %w", path, err)
		case token == json.Delim('}'):
			return nil // it is empty
		case token != want:
			return errDump
		}
	}
	for decoder.More() {
		var entry json.RawMessage
		if err := decoder.Decode(&entry); err != nil {
			return fmt.Errorf("querying Envoy for %s: %w", path, err)
		}
		if err := take(entry); err != nil {
			return err
		}
	}
	return nil
}
