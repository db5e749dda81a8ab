package collect

import (
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/grpc"

	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// size bounds what is read of a dump: gzip expands one byte to a thousand, so the size of the input is no bound.
type size struct {
	bytes   int64 // decompressed
	entries int   // that hold a resource or an error
}

var (
	// edgeSize far exceeds what the Envoy of an edge runs: some listeners and Envoy clusters, of 10 KiB each at most.
	edgeSize = size{bytes: 8 << 20, entries: 1000}
	// gatewaySize has room for 50,000 Envoy clusters.
	gatewaySize = size{bytes: 512 << 20, entries: 100_000}
)

// sizeOf returns the size for a node. No edge has a certificate with the name of a gateway.
func sizeOf(node string) size {
	if model.ValidateGatewayName(node) == nil {
		return gatewaySize
	}
	return edgeSize
}

// parts reads the parts of a dump as one stream.
type parts struct {
	stream grpc.ServerStreamingClient[inspectv1.DumpPart]
	rest   []byte
}

// Read implements io.Reader.
func (p *parts) Read(into []byte) (int, error) {
	for len(p.rest) == 0 {
		part, err := p.stream.Recv()
		if err != nil {
			return 0, err
		}
		p.rest = part.GetData()
	}
	n := copy(into, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// bounded is a reader that fails, instead of ending, after some bytes.
type bounded struct {
	io.Reader
	left, most int64
}

// Read implements io.Reader.
func (b *bounded) Read(into []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf(
			"it has more than %d MiB unpacked, far more than such an Envoy runs: do not trust the node", b.most>>20,
		)
	}
	n, err := b.Reader.Read(into[:min(int64(len(into)), b.left)])
	b.left -= int64(n)
	return n, err
}

// readDump decompresses a dump and reads one entry after the other, so that only one is in memory in both forms.
func readDump(packed io.Reader, most size) ([]Running, error) {
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		return nil, err
	}
	var all []Running
	decoder := json.NewDecoder(&bounded{unpacked, most.bytes, most.bytes})
	err = eachEntry(decoder, func(e *entry) error {
		if all = append(all, e.running()...); len(all) > most.entries {
			return fmt.Errorf(
				"it has more than %d resources, far more than such an Envoy runs: do not trust the node", most.entries,
			)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading what its agent sent: %w", err)
	}
	slices.SortStableFunc(all, func(a, b Running) int {
		return cmp.Or(strings.Compare(a.TypeURL, b.TypeURL), strings.Compare(a.Name, b.Name))
	})
	return all, nil
}

// maxRelay bounds the state of a relay, which lists at most some dozen names for each of its parts.
const maxRelay = 1 << 20

// readRelay decompresses the state of a relay.
func readRelay(packed io.Reader) (string, error) {
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		return "", err
	}
	decoder := json.NewDecoder(&bounded{unpacked, maxRelay, maxRelay})
	if err := delim(decoder, '{'); err != nil {
		return "", fmt.Errorf("reading what its agent sent: %w", err)
	}
	if key, err := decoder.Token(); err != nil || key != "relay" {
		return "", cmp.Or(err, ErrNoRelay)
	}
	var text string
	if err := decoder.Decode(&text); err != nil {
		return "", fmt.Errorf("reading what its agent sent: %w", err)
	}
	return text, nil
}

// eachEntry reads an object and calls do for each element of its list "configs". Other fields are skipped.
func eachEntry(decoder *json.Decoder, do func(*entry) error) error {
	if err := delim(decoder, '{'); err != nil {
		return err
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return err
		}
		if key != "configs" {
			var skipped json.RawMessage
			if err := decoder.Decode(&skipped); err != nil {
				return err
			}
			continue
		}
		if err := delim(decoder, '['); err != nil {
			return err
		}
		for decoder.More() {
			var e entry
			if err := decoder.Decode(&e); err != nil {
				return err
			}
			if err := do(&e); err != nil {
				return err
			}
		}
		if err := delim(decoder, ']'); err != nil {
			return err
		}
	}
	return delim(decoder, '}')
}

func delim(decoder *json.Decoder, want json.Delim) error {
	got, err := decoder.Token()
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("got %v instead of %v", got, want)
	}
	return nil
}
