package dial

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// proxiedTime bounds the attempt at one address through the proxy, which must resolve a name and dial before it
	// answers.
	proxiedTime = 8 * time.Second
	// maxAnswer bounds the head of a proxy's response.
	maxAnswer = 16 << 10
	// maxBody bounds how much of the body of a rejection is read. One line of it is reported.
	maxBody = 2 << 10
	// bodyTime bounds the wait for that body.
	bodyTime = 500 * time.Millisecond
	// maxQuote bounds quoted text from unknown sources.
	maxQuote = 200
)

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// open sends CONNECT to the proxy on raw and returns a connection to an address. If possible it returns raw itself, so
// that the kernel can copy from it.
func (p Proxy) open(ctx context.Context, raw net.Conn, to model.Endpoint) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	conn, err := p.connectThrough(ctx, raw, to)
	if !stop() && err == nil { // the deadline is set, or is being set
		err = ctx.Err()
	}
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf(
			"the proxy accepted the connection, but did not answer in time; it may have no route to %s: %w", to, err,
		)
	}
	return conn, err
}

func (p Proxy) connectThrough(ctx context.Context, raw net.Conn, to model.Endpoint) (net.Conn, error) {
	authorization, err := p.authorization()
	if err != nil {
		return nil, err
	}
	conn, err := p.wrap(ctx, raw)
	if err != nil {
		return nil, err
	}
	request := &http.Request{
		Method: http.MethodConnect,
		URL:    &url.URL{Opaque: to.String()},
		Host:   to.String(),
		Header: http.Header{"User-Agent": {"fairlead"}},
	}
	if authorization != "" {
		request.Header.Set("Proxy-Authorization", authorization)
	}
	if err := request.Write(conn); err != nil {
		return nil, fmt.Errorf("sending CONNECT to the proxy: %w", err)
	}
	head, err := readHead(conn)
	if err != nil {
		return nil, err
	}
	response, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head), conn)), request)
	if err != nil {
		return nil, fmt.Errorf("the answer is not from an HTTP proxy: %s", printable(firstLine(head)))
	}
	if response.StatusCode/100 == 2 {
		// the reader has not read beyond the head: responses to CONNECT have no body (RFC 9110, section 9.3.6)
		return conn, nil
	}
	_ = raw.SetReadDeadline(time.Now().Add(bodyTime))
	return nil, rejection(response, authorization != "")
}

// readHead reads exactly the head of the response, because the bytes after it belong to another protocol. Reading one
// byte per call is acceptable: it happens once per connection.
func readHead(conn net.Conn) ([]byte, error) {
	var head []byte
	for b := make([]byte, 1); !bytes.HasSuffix(head, []byte("\n\r\n")) && !bytes.HasSuffix(head, []byte("\n\n")); {
		n, err := conn.Read(b)
		head = append(head, b[:n]...)
		switch {
		case !bytes.HasPrefix([]byte("HTTP/"), head[:min(len(head), 5)]):
			return nil, notHTTP(conn, head)
		case err != nil && len(head) == 0 && !errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fmt.Errorf(
				"the proxy, or another server at its address, closed the connection without an answer: %w", err,
			)
		case err != nil:
			return nil, fmt.Errorf("reading the proxy's answer: %w", err)
		case len(head) > maxAnswer:
			return nil, fmt.Errorf("the answer is not from an HTTP proxy: its header has more than %d bytes", maxAnswer)
		}
	}
	return head, nil
}

// notHTTP describes a response that is not HTTP, by its first bytes and the bytes that follow immediately.
func notHTTP(conn net.Conn, head []byte) error {
	if head[0] == 0x15 || head[0] == 0x16 { // TLS records: alert, handshake
		return errors.New(
			"the answer is not from an HTTP proxy: it is TLS; if it is a proxy, its URL must begin with https://",
		)
	}
	_ = conn.SetReadDeadline(time.Now().Add(bodyTime))
	more := make([]byte, maxQuote)
	n, _ := conn.Read(more)
	return fmt.Errorf(
		"the answer is not from an HTTP proxy: it begins with %s", printable(firstLine(append(head, more[:n]...))),
	)
}

// rejection explains a response other than 2xx.
func rejection(response *http.Response, authorized bool) error {
	answer := "the proxy answers " + printable(response.Status)
	switch response.StatusCode {
	case http.StatusProxyAuthRequired, http.StatusUnauthorized:
		return errors.New(answer + ": " + credentialsRejected(response, authorized))
	case http.StatusMovedPermanently,
		http.StatusFound,
		http.StatusSeeOther,
		http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
		return fmt.Errorf(
			"%s, to %s: it is not a proxy, or the network requires a login first", answer,
			printable(response.Header.Get("Location")),
		)
	case http.StatusForbidden:
		answer += ": it does not allow this address and port"
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		answer += ": it cannot reach this address"
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		answer += ": it does not support CONNECT"
	}
	var details []string
	if reason := response.Header.Get("X-Squid-Error"); reason != "" {
		details = append(details, printable(reason))
	}
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxBody)) // as much as has arrived
	if line := firstLine(body); line != "" && !strings.HasPrefix(line, "<") {
		details = append(details, printable(line))
	}
	if len(details) > 0 {
		answer += "; it reports " + strings.Join(details, ", ")
	}
	return errors.New(answer)
}

func credentialsRejected(response *http.Response, authorized bool) string {
	offers := append(response.Header.Values("Proxy-Authenticate"), response.Header.Values("WWW-Authenticate")...)
	offersBasic := len(offers) == 0
	for n, offer := range offers {
		offers[n], _, _ = strings.Cut(offer, " ")
		offersBasic = offersBasic || strings.EqualFold(offers[n], "Basic")
	}
	switch {
	case !offersBasic:
		return "it requires " + printable(strings.Join(offers, ", ")) + ", and only Basic is supported"
	case authorized:
		return "it rejects the user and password"
	}
	return "it requires a user and a password, and none are configured"
}

// firstLine returns the first line that is not empty.
func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return strings.TrimSpace(line)
}
