package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/auth"
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
		for _, verb := range []string{"add", "set"} {
			t.Run(verb+": "+name, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, "ironwarp.yaml")
				args := []string{"ironwarp", "peer", verb, "--socket", filepath.Join(dir, "s"), "--generate-psk"}
				if verb == "add" {
					args = append(args, "beta", "198.51.100.2")
				} else {
					args = append(args, "--insecure-plaintext=false", "beta")
					if _, err := daemon.AddPeer(path, api.PeerSpec{Name: "beta", Address: "198.51.100.2", InsecurePlaintext: true}); err != nil {
						t.Fatal(err)
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
				ln, err := net.Listen("unix", filepath.Join(dir, "s"))
				if err != nil {
					t.Fatal(err)
				}
				srv := &http.Server{Handler: mux}
				t.Cleanup(func() { srv.Close() })
				go srv.Serve(ln)
				var out bytes.Buffer
				if run(t.Context(), args, nil, &out, &out) == 0 {
					t.Fatalf("it does not fail: %s", &out)
				}
				cfg, err := config.Load(path, false)
				if err != nil {
					t.Fatal(err)
				}
				p, ok := cfg.Peer("beta")
				ok = ok && p.PSKFile != ""
				if ok != c.declares {
					t.Fatalf("peers: %v\n%s", cfg.PeerNames(), &out)
				}
				if !ok {
					if _, err := os.Lstat(config.SecretPath(path, "beta")); err == nil {
						t.Errorf("the secret is left of a peer that there is not\n%s", &out)
					}
				} else if _, err := auth.LoadSecret(p.PSKFile); err != nil {
					t.Errorf("the peer is declared, and its secret is gone: %v\n%s", err, &out)
				}
			})
		}
	}
}
