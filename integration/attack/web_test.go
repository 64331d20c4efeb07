package attack

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/web"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// jewel is the name of an export that only the page's user may see; owned is an element that only an attacker puts on a page.
const jewel, owned = "crown-jewels", "x-owned"

// watched is a host whose page is attacked. A peer has chosen the name of an initiator.
type watched struct{}

func (watched) Status(context.Context) (api.Status, error) {
	return api.Status{
		Exports:        []api.Export{{ExportSpec: api.ExportSpec{Name: jewel}, State: api.ExportReady}},
		TargetSessions: []api.TargetSession{{ID: "1", Initiator: "<" + owned + " onclick=alert(1)>iqn</" + owned + ">"}},
	}, nil
}

func (watched) WatchSAs(ctx context.Context, _ string, _ func(api.SAEvent)) error {
	<-ctx.Done()
	return ctx.Err()
}

// webAttack is a request of an attacker; path is the page's, which some attackers know.
type webAttack struct {
	name  string
	check checks.Check
	make  func(r *http.Request, path string)
	got   func(body string) bool // reports whether the answer is what the attacker wants
}

// showsJewel reports whether an answer is the page.
func showsJewel(body string) bool { return strings.Contains(body, jewel) }

// hasOwned reports whether the attacker's element is one of the page.
func hasOwned(body string) bool {
	doc, err := html.Parse(strings.NewReader(body))
	if err != nil {
		return false
	}
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode && n.Data == owned {
			return true
		}
	}
	return false
}

// W1 to W4 of docs/security.md: other users of the host, pages of other sites, and peers, at the page of `ironwarp web`.
func TestPageOfTheHost(t *testing.T) {
	for _, a := range []webAttack{
		{"another user of the host asks for it without the token", checks.WebToken, func(r *http.Request, _ string) { r.URL.Path = "/x/" }, showsJewel},
		{"another user of the host guesses a token", checks.WebToken, func(r *http.Request, path string) { r.URL.Path = "/" + strings.Repeat("A", len(path)-2) + "/" }, showsJewel},
		{"a site's name was made this host's, and the token has leaked to it", checks.WebHost, func(r *http.Request, _ string) { r.Host = "evil.example:9745" }, showsJewel},
		{"a page of another site that knows the token shows it", checks.WebOrigin, func(r *http.Request, _ string) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, showsJewel},
		{"a page of another port of the host reads it", checks.WebOrigin, func(r *http.Request, _ string) { r.Header.Set("Origin", "http://127.0.0.1:8000") }, showsJewel},
		{"an initiator's name is an element", checks.WebEscape, func(*http.Request, string) {}, hasOwned},
	} {
		t.Run(a.name, func(t *testing.T) {
			switchOff(t, a.check)
			s := web.New(web.Options{Source: watched{}, Host: "alpha"})
			ln := must(web.Listen(t.Context(), "127.0.0.1:0"))(t)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Serve(ctx, ln) }()
			client := &http.Client{Transport: &http.Transport{}}
			t.Cleanup(func() {
				client.CloseIdleConnections()
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
			ask := func(change func(*http.Request, string)) string {
				req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ln.Addr().String()+s.Path(), nil))(t)
				change(req, s.Path())
				resp := must(client.Do(req))(t)
				defer resp.Body.Close()
				return string(must(io.ReadAll(resp.Body))(t))
			}
			// The page's own user sees it, as soon as the daemon was asked.
			eventually(t, func() bool { return showsJewel(ask(func(*http.Request, string) {})) })
			switch succeeded := a.got(ask(a.make)); {
			case succeeded && !checks.Weakened:
				t.Error("the attack succeeds")
			case !succeeded && checks.Weakened:
				t.Error("the attack fails without the check that it is about, too")
			}
		})
	}
}
