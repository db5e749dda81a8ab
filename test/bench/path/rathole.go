package path

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
)

var keyOfGenkey = regexp.MustCompile(`(Private|Public) Key:\s+(\S+)`)

// rathole starts rathole, which opens a separate TCP connection, encrypted by the Noise protocol, for each connection
// of a client.
func rathole(ctx context.Context, p *place, s *subject, l link) error {
	program, err := p.peer("rathole")
	if err != nil {
		return err
	}
	at, err := ports(2)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, program, "--genkey").Output()
	if err != nil {
		return fmt.Errorf("making a key: %w", err)
	}
	keys := map[string]string{}
	for _, m := range keyOfGenkey.FindAllStringSubmatch(string(out), -1) {
		keys[m[1]] = m[2]
	}
	tunnel, err := s.over(l, at[0])
	if err != nil {
		return err
	}
	server := fmt.Sprintf(
		"[server]\nbind_addr = %q\ndefault_token = \"t\"\n[server.transport]\ntype = "+
			"\"noise\"\n[server.transport.noise]\nlocal_private_key = %q\n[server.services.a]\nbind_addr = %q\n",
		at[0],
		keys["Private"],
		at[1],
	)
	client := fmt.Sprintf(
		"[client]\nremote_addr = %q\ndefault_token = \"t\"\n[client.transport]\ntype = "+
			"\"noise\"\n[client.transport.noise]\nremote_public_key = %q\n[client.services.a]\nlocal_addr = %q\n",
		tunnel,
		keys["Public"],
		p.at,
	)
	serverFile, clientFile := filepath.Join(s.dir, "server.toml"), filepath.Join(s.dir, "client.toml")
	if err := errors.Join(os.WriteFile(serverFile, []byte(server), 0o600), os.WriteFile(clientFile, []byte(client),
		0o600)); err != nil {
		return err
	}
	if err := s.start(ctx, at[0], "server", program, "--server", serverFile); err != nil {
		return err
	}
	s.reach(at[1])
	_, err = s.run("client", program, "--client", clientFile)
	return err
}
