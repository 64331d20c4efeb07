package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/invite"
)

// A peer that the daemon has declared keeps its secret, though its answer was lost, as after Ctrl-C; one that it has refused leaves none.
func TestSecretStaysWhereItsPeerMayBeDeclared(t *testing.T) {
	for name, c := range map[string]struct {
		declares bool
		answer   *api.Error // nil: none comes
	}{
		"the answer is lost":                    {true, nil},
		"what came after the declaration fails": {true, &api.Error{Code: api.CodeUnavailable, Message: "cannot go on"}},
		"it is refused":                         {false, &api.Error{Code: api.CodeInvalid, Message: "no"}},
	} {
		for _, verb := range []string{"add", "set", "rotate-secret", "join"} {
			t.Run(verb+": "+name, func(t *testing.T) {
				dir := t.TempDir()
				path, socket := filepath.Join(dir, "ironwarp.yaml"), filepath.Join(dir, "s")
				own := config.SecretPath(path, "beta") // of this peer alone
				var out bytes.Buffer
				peer := func(args ...string) error {
					if run(t.Context(), append([]string{"ironwarp", "peer", verb, "--socket", socket, "--generate-psk"}, args...), nil, &out, &out) != 0 {
						return errors.New(out.String())
					}
					return nil
				}
				declared := func(spec api.PeerSpec) {
					if spec.Name == "" {
						spec.Name, spec.Address = "beta", "198.51.100.2"
					}
					if _, err := daemon.AddPeer(path, spec); err != nil {
						t.Fatal(err)
					}
				}
				var act func() error
				switch verb {
				case "add":
					act = func() error { return peer("beta", "198.51.100.2") }
				case "set":
					declared(api.PeerSpec{InsecurePlaintext: true})
					act = func() error { return peer("--insecure-plaintext=false", "beta") }
				case "rotate-secret":
					shared := filepath.Join(dir, "shared.psk")
					if err := os.WriteFile(shared, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
						t.Fatal(err)
					}
					declared(api.PeerSpec{PSKFile: shared})
					declared(api.PeerSpec{PSKFile: shared, Name: "gamma", Address: "198.51.100.3"})
					act = func() error { return peer("beta") }
				case "join":
					cfg, err := config.Load(path, false)
					if err != nil {
						t.Fatal(err)
					}
					secret, err := auth.NewSecret([]byte("0123456789abcdef0123456789abcdef"))
					if err != nil {
						t.Fatal(err)
					}
					j := &joint{main: path, cfg: cfg, cl: api.NewClient(socket)}
					act = func() error {
						return j.write(t.Context(), invite.Partner{Host: invite.Host{Name: "beta"}, Address: netip.MustParseAddr("198.51.100.2"), LocalAddress: netip.MustParseAddr("198.51.100.1")}, secret)
					}
				}
				mux := http.NewServeMux()
				mux.HandleFunc("GET /v1/info", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(api.Info{Config: path}) })
				changes := func(w http.ResponseWriter, r *http.Request, change any, declare func() error) {
					err := json.NewDecoder(r.Body).Decode(change)
					if err == nil && c.declares {
						err = declare()
					}
					if err != nil {
						t.Error(err)
					}
					if c.answer == nil {
						panic(http.ErrAbortHandler)
					}
					w.WriteHeader(http.StatusConflict)
					_ = json.NewEncoder(w).Encode(c.answer)
				}
				mux.HandleFunc("POST /v1/peers", func(w http.ResponseWriter, r *http.Request) {
					var s api.PeerSpec
					changes(w, r, &s, func() error { _, err := daemon.AddPeer(path, s); return err })
				})
				mux.HandleFunc("PATCH /v1/peers", func(w http.ResponseWriter, r *http.Request) {
					var s api.PeerChange
					changes(w, r, &s, func() error { _, err := daemon.SetPeer(path, s); return err })
				})
				ln, err := net.Listen("unix", socket)
				if err != nil {
					t.Fatal(err)
				}
				srv := &http.Server{Handler: mux}
				t.Cleanup(func() { srv.Close() })
				go srv.Serve(ln)
				if err := act(); err == nil {
					t.Fatalf("it does not fail: %s", &out)
				}
				cfg, err := config.Load(path, false)
				if err != nil {
					t.Fatal(err)
				}
				p, ok := cfg.Peer("beta")
				ok = ok && p.PSKFile == own
				if ok != c.declares {
					t.Fatalf("peers: %v\n%s", cfg.PeerNames(), &out)
				}
				if !ok {
					if _, err := os.Lstat(own); err == nil {
						t.Errorf("the secret is left of a peer that there is not\n%s", &out)
					}
				} else if _, err := auth.LoadSecret(own); err != nil {
					t.Errorf("the peer is declared, and its secret is gone: %v\n%s", err, &out)
				}
			})
		}
	}
}
