package attack

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/web"
	"github.com/ironwarp/ironwarp/integration/browser"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// rebound is another site, whose owner has its name stand for this host.
const rebound = "evil.example"

// evilPage tries to get at the page whose address it knows, in each way that a browser has, and puts what succeeds into results.
const evilPage = `<!DOCTYPE html><title>evil</title><body><script>
const page = %q, results = [], tried = [];
const attempt = (name, f) => tried.push(f().then((ok) => { if (ok) results.push(name); }, () => {}));
const element = (tag, address) => new Promise((yes, no) => {
	const e = document.createElement(tag);
	e.onload = () => yes(true);
	e.onerror = () => no();
	if (tag === "link") { e.rel = "stylesheet"; e.href = address; } else { e.src = address; }
	document.body.append(e);
});
attempt("it reads the page", async () => (await (await fetch(page)).text()).includes("crown"));
attempt("it reads it without CORS", async () => (await fetch(page, {mode: "no-cors"})) !== undefined);
attempt("it reads the events", () => new Promise((yes, no) => { const s = new EventSource(page + "events"); s.onmessage = () => yes(true); s.onerror = () => no(); }));
attempt("it runs the script", () => element("script", page + "script.js"));
attempt("it takes the style", () => element("link", page + "style.css"));
attempt("it shows the icon", () => element("img", page + "icon.svg"));
attempt("it changes something", async () => (await fetch(page, {method: "POST", mode: "no-cors"})) !== undefined);
const frame = document.createElement("iframe");
frame.src = page;
document.body.append(frame);
Promise.all(tried).then(() => { document.title = "tried " + tried.length; });
</script>`

// W2 and W3 of docs/security.md in a real browser: a site that knows the page's address, and has its own name stand for this host, gets
// nothing of it.
func TestOtherSitesInABrowser(t *testing.T) {
	if checks.Weakened {
		t.Skip("TestPageOfTheHost switches the checks off; a browser has some of its own")
	}
	browser.Need(t)
	s := web.New(web.Options{Source: watched{}, Host: "alpha"})
	ln := must(web.Listen(t.Context(), "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	page := "http://" + ln.Addr().String() + s.Path()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, evilPage, page)
	}))
	t.Cleanup(site.Close)
	port := func(a net.Addr) string { return fmt.Sprint(a.(*net.TCPAddr).Port) }
	b := browser.Start(t, exec.CommandContext, "--host-resolver-rules=MAP "+rebound+" 127.0.0.1", "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests")

	b.Open(page)
	b.Until("the page's user sees it", "document.body.innerText.includes('"+jewel+"')")

	for _, at := range []string{"http://" + rebound + ":" + port(site.Listener.Addr()) + "/", site.URL + "/"} {
		b.Open(at)
		b.Until("the site has tried all it can", "document.title === 'tried 7'")
		var got []string
		if b.Evaluate("results", &got); len(got) > 0 {
			t.Errorf("a page at %s: %s", at, strings.Join(got, ", "))
		}
	}

	b.Open("http://" + rebound + ":" + port(ln.Addr()) + s.Path())
	b.Until("there is an answer", "location.host.startsWith('"+rebound+"') && document.body.innerText !== ''")
	var text string
	if b.Evaluate("document.body.innerText", &text); strings.Contains(text, jewel) || !strings.Contains(text, "browsers on its own host") {
		t.Errorf("under a name that is another's: %q", text)
	}
}
