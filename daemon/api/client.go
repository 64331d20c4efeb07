package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"
)

// maxAnswer bounds one JSON answer, in bytes: a status with 10,000 streams fits.
const maxAnswer = 64 << 20

// Client talks to the daemon at one control socket. It is safe for concurrent
// use.
//
// Each call fails with the *Error that the daemon answers, with ctx's error, and with
// an *Error of CodeUnavailable or CodeForbidden where no daemon can be reached; see
// NotRunning.
type Client struct {
	socket string
	http   http.Client
}

// NewClient returns a client for the daemon at a Unix socket. Nothing is
// connected until the first call.
func NewClient(socket string) *Client {
	return NewClientOn(socket, func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	})
}

// NewClientOn is NewClient with connections that dial makes. To the daemon the client
// is the user who made the connection.
func NewClientOn(socket string, dial func(context.Context) (net.Conn, error)) *Client {
	c := &Client{socket: socket}
	c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	return c
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// NotRunning reports whether an error means that no daemon answers.
func NotRunning(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// dialError is a failure to reach the daemon, and its cause.
type dialError struct {
	what  Error
	cause error
}

func (e *dialError) Error() string   { return e.what.Error() }
func (e *dialError) Unwrap() []error { return []error{&e.what, e.cause} }

// explainDial adds what to do to an error of reaching the daemon; others it returns as they are.
func (c *Client) explainDial(err error) error {
	var oe *net.OpError
	if !errors.As(err, &oe) || oe.Op != "dial" {
		return err
	}
	e := &dialError{what: Error{Code: CodeUnavailable}, cause: err}
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.what.Code = CodeForbidden
		e.what.Message = fmt.Sprintf("cannot open the control socket %s: permission denied", c.socket)
		e.what.Fix = "the daemon answers root (and the user it runs as) only: run the command with sudo"
	case errors.Is(err, fs.ErrNotExist):
		e.what.Message = fmt.Sprintf("no daemon at %s: the socket does not exist", c.socket)
		e.what.Fix = "start it with `systemctl start ironwarp` or `ironwarp daemon`, or name another socket with --socket or IRONWARP_SOCKET"
	case errors.Is(err, syscall.ECONNREFUSED):
		e.what.Message = fmt.Sprintf("no daemon at %s: the socket is there but nobody listens, so the daemon has died", c.socket)
		e.what.Fix = "start it again with `systemctl start ironwarp` or `ironwarp daemon`; its log says why it ended"
	default:
		e.what.Message = fmt.Sprintf("cannot reach the daemon at %s: %v", c.socket, oe.Err)
	}
	return e
}

// send makes a request with in as its JSON body, if it is not nil. It fails unless the daemon reports
// success.
func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://ironwarp"+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, c.explainDial(err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, refusal(resp)
}

// refusal is the error that the daemon has answered.
func refusal(resp *http.Response) error {
	var e Error
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&e); err != nil || e.Message == "" {
		return &Error{Code: CodeInternal, Message: fmt.Sprintf("the daemon answered %s to %s %s", resp.Status, resp.Request.Method, resp.Request.URL.Path), Fix: "is it an ironwarp daemon of this version? See `ironwarp version`"}
	}
	return &e
}

// call makes a request and reads its answer into out, if that is not nil.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("read the daemon's answer to %s %s: %w", method, path, err)
	}
	return nil
}

// stream makes a request that is answered with Events: it calls on with each but the last, whose result
// it reads into out.
func (c *Client) stream(ctx context.Context, path string, in, out any, on func(Event)) error {
	resp, err := c.send(ctx, http.MethodPost, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for dec := json.NewDecoder(resp.Body); ; {
		var ev Event
		if err := dec.Decode(&ev); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return &Error{Code: CodeUnavailable, Message: fmt.Sprintf("the daemon at %s ended in the middle of its answer (%v)", c.socket, err), Fix: "its log says why"}
		}
		switch {
		case ev.Error != nil:
			return ev.Error
		case ev.Result != nil:
			return json.Unmarshal(ev.Result, out)
		case on != nil:
			on(ev)
		}
	}
}

// Info describes the daemon that answers. It fails as each call does.
func (c *Client) Info(ctx context.Context) (v Info, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/info", nil, &v)
}

// Status returns everything at once. It fails as each call does.
func (c *Client) Status(ctx context.Context) (v Status, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/status", nil, &v)
}

// Reload makes the daemon read its configuration again. It fails as each call does.
func (c *Client) Reload(ctx context.Context) (v Reloaded, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/reload", nil, &v)
}

// Peers lists the peers. It fails as each call does.
func (c *Client) Peers(ctx context.Context) (v []Peer, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/peers", nil, &v)
}

// Peer shows one peer. It fails as each call does, with CodeNotFound for an unknown
// name.
func (c *Client) Peer(ctx context.Context, name string) (v Peer, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/peers/"+url.PathEscape(name), nil, &v)
}

// AddPeer declares a peer and applies it. It fails as each call does, with CodeExists
// for a name that is taken.
func (c *Client) AddPeer(ctx context.Context, spec PeerSpec) (v Peer, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/peers", spec, &v)
}

// SetPeer changes what a peer's declaration says, and applies it. It fails as each call
// does, with CodeNotFound for an unknown name.
func (c *Client) SetPeer(ctx context.Context, change PeerChange) (v Peer, err error) {
	return v, c.call(ctx, http.MethodPatch, "/v1/peers", change, &v)
}

// RemovePeer removes a peer's declaration and everything that was set up for it. With
// force its disks are detached, and exports do not allow it any more. It fails as each
// call does, with CodeNotFound for an unknown name.
func (c *Client) RemovePeer(ctx context.Context, name string, force bool) (v Removed, err error) {
	return v, c.call(ctx, http.MethodDelete, "/v1/peers/"+url.PathEscape(name)+forceQuery(force), nil, &v)
}

// Offers lists what a peer offers to this host. It fails as each call does, with
// CodeNotFound for an unknown name.
func (c *Client) Offers(ctx context.Context, peer string) (v []Offer, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/peers/"+url.PathEscape(peer)+"/exports", nil, &v)
}

// Exports lists the exports. It fails as each call does.
func (c *Client) Exports(ctx context.Context) (v []Export, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/exports", nil, &v)
}

// AddExport declares an export and opens it. It fails as each call does, with
// CodeExists for a name that is taken.
func (c *Client) AddExport(ctx context.Context, spec ExportSpec) (v Export, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/exports", spec, &v)
}

// RepairExport offers an export again, whose storage has lost acknowledged writes. It
// fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) RepairExport(ctx context.Context, name string) (v Export, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/exports/"+url.PathEscape(name)+"/repair", nil, &v)
}

// FenceExport makes what lets a peer write to an export void, and waits until nothing of the
// peer reaches its storage any more. It fails as each call does, with CodeNotFound for an
// unknown name, and with CodeTimeout if the peer is fenced and I/O of it has not ended.
func (c *Client) FenceExport(ctx context.Context, name string, q FenceRequest) (v Fenced, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/exports/"+url.PathEscape(name)+"/fence", q, &v)
}

// ResizeExport gives an export's file another size, or takes over its device's. It fails as
// each call does, with CodeNotFound for an unknown name.
func (c *Client) ResizeExport(ctx context.Context, name string, q ResizeRequest) (v Export, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/exports/"+url.PathEscape(name)+"/resize", q, &v)
}

// SetExport changes what an export's declaration says, and applies it. It fails as each
// call does, with CodeNotFound for an unknown name.
func (c *Client) SetExport(ctx context.Context, name string, change ExportChange) (v Export, err error) {
	return v, c.call(ctx, http.MethodPatch, "/v1/exports/"+url.PathEscape(name), change, &v)
}

// RemoveExport removes an export. While peers have it open force is needed, and their
// I/O fails from then on. It fails as each call does, with CodeNotFound for an unknown
// name.
func (c *Client) RemoveExport(ctx context.Context, name string, force bool) error {
	return c.call(ctx, http.MethodDelete, "/v1/exports/"+url.PathEscape(name)+forceQuery(force), nil, nil)
}

// forceQuery is the query of a request that is to be forced, or not.
func forceQuery(force bool) string {
	if force {
		return "?force=1"
	}
	return ""
}

// Attachments lists the attached disks. It fails as each call does.
func (c *Client) Attachments(ctx context.Context) (v []Attachment, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/attachments", nil, &v)
}

// Attach brings a peer's export up as an NBD socket; on gets the progress. It fails as
// each call does, with CodeNotFound for an unknown name.
func (c *Client) Attach(ctx context.Context, req AttachRequest, on func(Event)) (v Attachment, err error) {
	return v, c.stream(ctx, "/v1/attachments", req, &v, on)
}

// Detach ends an attachment. While NBD clients are connected force is needed, and their
// I/O fails from then on. It fails as each call does, with CodeNotFound for an unknown
// name.
func (c *Client) Detach(ctx context.Context, peer, export string, force bool) error {
	return c.call(ctx, http.MethodDelete, "/v1/attachments/"+url.PathEscape(peer)+"/"+url.PathEscape(export)+forceQuery(force), nil, nil)
}

// SAs lists the SAs of all peers. It fails as each call does.
func (c *Client) SAs(ctx context.Context) (v []SA, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/sas", nil, &v)
}

// IKESAs lists the IKE SAs of a peer with their children, of all peers if its name is
// empty. It fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) IKESAs(ctx context.Context, peer string) (v []IKESA, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/ike?"+url.Values{"peer": {peer}}.Encode(), nil, &v)
}

// DeleteSAs deletes the child SAs of a peer, all or those of one name, and returns
// how many there were. It fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) DeleteSAs(ctx context.Context, peer, child string) (n int, err error) {
	q := url.Values{"peer": {peer}}
	if child != "" {
		q.Set("child", child)
	}
	return n, c.call(ctx, http.MethodDelete, "/v1/sas?"+q.Encode(), nil, &n)
}

// DeleteIKE deletes the IKE SAs of a peer with their children, and returns how many
// there were. It fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) DeleteIKE(ctx context.Context, peer string) (n int, err error) {
	return n, c.call(ctx, http.MethodDelete, "/v1/ike?"+url.Values{"peer": {peer}}.Encode(), nil, &n)
}

// RekeySAs makes new keys for the child SAs of a peer, all or those of one name, and
// returns for how many. It fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) RekeySAs(ctx context.Context, peer, child string) (n int, err error) {
	return n, c.call(ctx, http.MethodPost, "/v1/sas/rekey", SARequest{Peer: peer, Child: child}, &n)
}

// RekeyIKE makes new keys for the IKE SAs of a peer, and returns for how many. It fails as
// each call does, with CodeNotFound for an unknown name.
func (c *Client) RekeyIKE(ctx context.Context, peer string) (n int, err error) {
	return n, c.call(ctx, http.MethodPost, "/v1/ike/rekey", SARequest{Peer: peer}, &n)
}

// WatchSAs reports what happens to the SAs of a peer, of all peers if its name is
// empty, until ctx ends. It fails as each call does, with CodeNotFound for an unknown
// name.
func (c *Client) WatchSAs(ctx context.Context, peer string, on func(SAEvent)) error {
	return c.stream(ctx, "/v1/sas/watch", SARequest{Peer: peer}, nil, func(ev Event) {
		if ev.SA != nil && on != nil {
			on(*ev.SA)
		}
	})
}

// Resources reports who uses how much of the RNIC's resources. It fails as each call does.
func (c *Client) Resources(ctx context.Context) (v Resources, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/resources", nil, &v)
}

// Streams lists the RDMA streams. It fails as each call does.
func (c *Client) Streams(ctx context.Context) (v []Stream, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/streams", nil, &v)
}

// KillStream ends the stream with an ID, and returns what it was. It fails as each call
// does, with CodeNotFound for an unknown name.
func (c *Client) KillStream(ctx context.Context, id string) (v Stream, err error) {
	return v, c.call(ctx, http.MethodDelete, "/v1/streams/"+url.PathEscape(id), nil, &v)
}

// Blocks lists the peers that are blocked. It fails as each call does.
func (c *Client) Blocks(ctx context.Context) (v []Block, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/blocks", nil, &v)
}

// Block keeps a peer out for a while. It replaces a block that the peer already has. It fails as each
// call does, with CodeNotFound for an unknown name.
func (c *Client) Block(ctx context.Context, req BlockRequest) (v Block, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/blocks", req, &v)
}

// Unblock lets a peer in again. It fails as each call does, with CodeNotFound for an
// unknown name.
func (c *Client) Unblock(ctx context.Context, peer string) error {
	return c.call(ctx, http.MethodDelete, "/v1/blocks/"+url.PathEscape(peer), nil, nil)
}

// Ping measures round trips; on gets each. It fails as each call does, with
// CodeNotFound for an unknown name.
func (c *Client) Ping(ctx context.Context, req PingRequest, on func(Event)) (v PingResult, err error) {
	return v, c.stream(ctx, "/v1/ping", req, &v, on)
}

// Bench runs a short benchmark; on gets each row as it is measured. It fails as each
// call does, with CodeNotFound for an unknown name.
func (c *Client) Bench(ctx context.Context, req BenchRequest, on func(Event)) (v BenchResult, err error) {
	return v, c.stream(ctx, "/v1/bench", req, &v, on)
}

// FlowsProtocol is what a program asks for that has flows of its own; its connection is one of package transport/delegate
// then.
const FlowsProtocol = "ironwarp-flows/1"

// DialFlows connects a program. It fails as each call does.
func DialFlows(ctx context.Context, socket string) (*net.UnixConn, error) {
	c := NewClient(socket)
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, c.explainDial(err)
	}
	unix := conn.(*net.UnixConn)
	if err := UpgradeFlows(ctx, unix); err != nil {
		unix.Close()
		return nil, err
	}
	return unix, nil
}

// UpgradeFlows is DialFlows on a connection to the control socket, which remains the caller's. It fails as that does.
func UpgradeFlows(ctx context.Context, conn *net.UnixConn) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := upgrade(ctx, conn)
	if !stop() {
		return ctx.Err()
	}
	return err
}

func upgrade(ctx context.Context, conn *net.UnixConn) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://ironwarp/v1/flows", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", FlowsProtocol)
	if err := req.Write(conn); err != nil {
		return err
	}
	// Byte by byte: what is behind the header is not HTTP any more.
	in := bufio.NewReaderSize(&oneByte{conn}, 16)
	resp, err := http.ReadResponse(in, req)
	if err != nil {
		return &Error{Code: CodeUnavailable, Message: fmt.Sprintf("the daemon does not take programs now (%v)", err), Fix: "its log says why"}
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	return refusal(resp)
}

// oneByte reads one byte at a time.
type oneByte struct{ io.Reader }

func (r *oneByte) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), 1)]) }
