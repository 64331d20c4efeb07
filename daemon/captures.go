package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/capture"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/transport"
)

// forbidsCapture fails for those who may not see streams in clear. A privileged ULP may manage the host, but the streams are
// of others, too.
func forbidsCapture(u local.User) error {
	if mayCapture(u) {
		return nil
	}
	return &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("user id %d may not capture: streams would be seen in clear", u.UID), Fix: "root alone may: run the command with sudo"}
}

// captureRoute answers with a capture, for as long as the caller reads it.
func (d *Daemon) captureRoute(w http.ResponseWriter, r *http.Request) {
	c, err := d.beginCapture(w, r)
	if err != nil {
		respond(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", api.CaptureType)
	w.Header().Set(api.CaptureHeader, strconv.FormatUint(c.ID, 10))
	rc := http.NewResponseController(w)
	// A caller that does not read keeps its own capture waiting. It ends with the daemon at the latest.
	defer context.AfterFunc(r.Context(), func() { _ = rc.SetWriteDeadline(time.Unix(1, 0)) })()
	defer context.AfterFunc(d.ctx, func() { _ = rc.SetWriteDeadline(time.Unix(1, 0)) })()
	err = c.Run(r.Context(), w, rc.Flush)
	taken, dropped := c.Counts()
	d.log.Warn("capture has ended", "capture", c.ID, "captured", taken, "dropped", dropped, "error", err)
}

// beginCapture begins the capture that a request asks for.
func (d *Daemon) beginCapture(w http.ResponseWriter, r *http.Request) (*capture.Capture, error) {
	u := r.Context().Value(connKey{}).(*local.Conn).User
	if err := forbidsCapture(u); err != nil {
		return nil, err
	}
	q, err := decodeBody[api.CaptureRequest](w, r)
	if err != nil {
		return nil, err
	}
	var identity transport.Identity
	if q.Peer != "" {
		p, err := d.findPeer(q.Peer)
		if err != nil {
			return nil, err
		}
		identity = p.identity
	}
	c, err := d.captures.Begin(capture.About{Version: d.opt.Version, Peer: q.Peer, Payload: q.Payload, Began: time.Now(),
		Name: func(id string) string { return d.peers.nameOf(transport.Identity(id)) }}, string(identity), int(u.PID))
	if errors.Is(err, capture.ErrTooMany) {
		return nil, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("%d captures run, which is the most", capture.Most), Fix: "`ironwarp status` shows the processes that read them: end one"}
	}
	if err != nil {
		return nil, err
	}
	// No attribute is a peer's: then repetitions would be left out, and root has every capture in the log.
	d.log.Warn("capture has begun: streams are copied in clear", "capture", c.ID, "streams_with", cmp.Or(q.Peer, "all peers"), "payload", q.Payload, "pid", u.PID, "uid", u.UID)
	return c, nil
}

// describeCapture is a capture as the control API has it.
func describeCapture(c *capture.Capture) api.Capture {
	v := api.Capture{ID: c.ID, Peer: c.Peer, Payload: c.Payload, PID: c.PID, AgeSeconds: time.Since(c.Began).Seconds()}
	v.Captured, v.Dropped = c.Counts()
	return v
}

// describeCaptures lists the captures that run.
func (d *Daemon) describeCaptures() []api.Capture {
	out := []api.Capture{}
	for _, c := range d.captures.List() {
		out = append(out, describeCapture(c))
	}
	return out
}

// endCapture ends a capture.
func (d *Daemon) endCapture(r *http.Request) (api.Capture, error) {
	if err := forbidsCapture(r.Context().Value(connKey{}).(*local.Conn).User); err != nil {
		return api.Capture{}, err
	}
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	c := d.captures.Find(id)
	if err != nil || c == nil {
		return api.Capture{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("no capture %q runs", r.PathValue("id")), Fix: "`ironwarp status` shows those that do"}
	}
	c.End()
	return describeCapture(c), nil
}
