// Package web serves a page about a host to a browser on the same host: its peers, SAs, disks and what happens to them.
//
// It is a client of the daemon's control API, with the rights of the user who runs it, and changes nothing. What one look at the
// host brings goes this way:
//
//	Server.look      asks the daemon once an interval                      (server.go)
//	clean            leaves nothing in it that steers a terminal or a page (clean.go)
//	record.look      compares it with the one before: events, rates        (record.go, events.go, history.go)
//	render           makes the page's sections by html/template            (render.go, view.go, plot.go)
//	Server.page      serves them as a page                                 (server.go)
//	Server.stream    and those that changed to pages that are open         (stream.go)
//
// Every user of the host reaches a port of loopback, and so does each page that their browsers show. So a request has to
// have the token of the page's address, which only who started the server was shown, and must not come
// from a page of another origin, nor by another name of the host (checks.go).
package web
