package api

import (
	"context"
	"io"
	"net/http"
	"strconv"
)

// CaptureHeader is the header of an answer with a capture; it has the capture's ID.
const CaptureHeader = "Ironwarp-Capture"

// CaptureType is the media type of that answer.
const CaptureType = "application/x-pcapng"

// CaptureRequest asks for a capture of the streams of the daemon's services, in clear.
type CaptureRequest struct {
	Peer    string `json:"peer,omitempty"` // "": all
	Payload bool   `json:"payload,omitempty"`
}

// Capture is a capture that runs, or has just ended.
type Capture struct {
	ID         uint64  `json:"id"`
	Peer       string  `json:"peer,omitempty"` // "": all
	Payload    bool    `json:"payload"`
	PID        int     `json:"pid"` // of the process that reads it
	AgeSeconds float64 `json:"age_seconds"`
	Captured   uint64  `json:"captured"` // FPDUs and chunks
	Dropped    uint64  `json:"dropped"`  // for lack of room, as the reader was too slow
}

// Capture begins a capture. It ends when ctx does or the file is closed, and by EndCapture, after which the file, in pcapng, is
// whole. It fails as each call does, with CodeForbidden for others than root, CodeNotFound for an unknown name, and CodeInUse
// where too many captures run.
func (c *Client) Capture(ctx context.Context, q CaptureRequest) (id uint64, file io.ReadCloser, err error) {
	resp, err := c.send(ctx, http.MethodPost, "/v1/captures", q)
	if err != nil {
		return 0, nil, err
	}
	id, err = strconv.ParseUint(resp.Header.Get(CaptureHeader), 10, 64)
	if err != nil {
		resp.Body.Close()
		return 0, nil, &Error{Code: CodeInternal, Message: "the daemon has answered with something else than a capture", Fix: "is it an ironwarp daemon of this version? See `ironwarp version`"}
	}
	return id, resp.Body, nil
}

// Captures lists the captures that run. It fails as each call does.
func (c *Client) Captures(ctx context.Context) (v []Capture, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/captures", nil, &v)
}

// EndCapture ends a capture, and reports what it was. It fails as each call does, with CodeNotFound where there is none of that
// ID any more, and with CodeForbidden for others than root.
func (c *Client) EndCapture(ctx context.Context, id uint64) (v Capture, err error) {
	return v, c.call(ctx, http.MethodDelete, "/v1/captures/"+strconv.FormatUint(id, 10), nil, &v)
}
