package rnbd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

// ClientConfig describes a session with a server of exports.
type ClientConfig struct {
	// RTRS is the session. Its OnConnect, OnResend, OnNoPath and KindOf are set by
	// Connect.
	RTRS   rtrs.ClientConfig
	Logger *slog.Logger
	Quiet  bool // see Client.SetQuiet

	version rtrs.Protocol // of another release, in tests; 0: Version
}

// Client is a session with a server of exports, in which disks are opened. All
// methods are safe for concurrent use.
type Client struct {
	rt      *rtrs.Client
	log     *slog.Logger
	newest  rtrs.Protocol // that this end speaks
	version atomic.Uint32 // that was agreed on, an rtrs.Protocol

	silent atomic.Bool // the server does not say which disks have grown
	quiet  atomic.Bool // see SetQuiet

	ctx    context.Context // ends with the client
	cancel context.CancelFunc
	wg     sync.WaitGroup // background work

	mu     sync.Mutex // guards the fields below it
	disks  []*Disk
	lastID uint32 // of the last device
	closed bool

	free ioPool
}

// Connect opens a session, see rtrs.Connect. It fails as that does.
func Connect(ctx context.Context, cfg ClientConfig) (*Client, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	c := &Client{log: cfg.Logger, newest: cmp.Or(cfg.version, Version)}
	c.quiet.Store(cfg.Quiet)
	cfg.RTRS.OnConnect = c.onConnect
	cfg.RTRS.OnResend, cfg.RTRS.OnNoPath, cfg.RTRS.KindOf = onResend, c.failHeld, kindOf
	if cfg.RTRS.Logger == nil {
		cfg.RTRS.Logger = cfg.Logger
	}
	rt, err := rtrs.Connect(ctx, cfg.RTRS)
	if err != nil {
		return nil, err
	}
	c.rt = rt
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.wg.Go(c.watchSizes)
	return c, nil
}

// onConnect tells the server again what it may have forgotten. An error of a single disk
// does not keep the session from coming up.
func (c *Client) onConnect(ctx context.Context, rt *rtrs.Client) error {
	req, answer := sessInfo{Version: c.newest}, make([]byte, sessInfoLen)
	if err := rt.Control(ctx, req.Append(nil, msgSessInfo), answer); err != nil {
		if errors.Is(err, syscall.EPROTONOSUPPORT) { // it does not say which one it speaks
			err = fmt.Errorf("%w than RNBD %v of this host; install the same release on both", ErrVersion, c.newest)
		}
		return fmt.Errorf("rnbd: introduce the session: %w", err)
	}
	var rsp sessInfo
	if err := rsp.Parse(answer, msgSessInfoRsp); err != nil {
		return err
	}
	v, err := agree(c.newest, rsp.Version)
	if err != nil {
		return fmt.Errorf("rnbd: introduce the session: %w", err)
	}
	c.version.Store(uint32(v))
	c.silent.Store(false)
	c.mu.Lock()
	disks := slices.Clone(c.disks)
	c.mu.Unlock()
	disks = slices.DeleteFunc(disks, (*Disk).isClosing)
	errs := make([]error, len(disks))
	var wg sync.WaitGroup
	for i, d := range disks {
		wg.Go(func() { errs[i] = d.reopen(ctx, rt, nil) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && (errors.Is(err, rtrs.ErrPathLost) || ctx.Err() != nil) {
			return err
		}
	}
	return nil
}

// openDevice asks the server for a device.
func openDevice(ctx context.Context, rt *rtrs.Client, name string, access uint8, id uint32, claim Claim) (rsp openRsp, err error) {
	req, answer := openMsg{Access: access, Name: name, Device: id, Claim: claim}, make([]byte, openRspLen)
	if err := rt.Control(ctx, req.Append(nil), answer); err != nil {
		return rsp, openError(name, err)
	}
	if err := rsp.Parse(answer); err != nil {
		return rsp, &OpenError{Export: name, Err: err}
	}
	if err := refusals[rsp.Result]; err != nil {
		return rsp, &OpenError{Export: name, Detail: rsp.Detail, Err: err}
	}
	if rsp.Device != id {
		return rsp, &OpenError{Export: name, Err: wireErr("device %d, asked for as %d", rsp.Device, id)}
	}
	return rsp, nil
}

// OpenOptions configures the opening of a disk.
type OpenOptions struct {
	ReadOnly bool // even if the export is writable
	// Migration lets the disk have another writer, in another session, if the export
	// permits two for that (MigrationWriters): until one of them closes it.
	Migration bool
	// Claim is the claim kept from an earlier opening of the disk; the zero value opens
	// it anew.
	Claim Claim
	// Keep, if set, stores the claim for after a restart. It is called before I/O is done
	// under the claim, and an error keeps the disk from being opened.
	Keep func(Claim) error
}

// Open opens an export as a disk. The error is an *OpenError, for example with
// ErrNotFound or ErrForbidden. A disk whose claim was fenced is opened all the same: its I/O
// fails with EPERM, as it would have without the restart, and its Info says why.
func (c *Client) Open(ctx context.Context, name string, opt OpenOptions) (*Disk, error) {
	if err := CheckName(name); err != nil {
		return nil, &OpenError{Export: name, Err: err}
	}
	if v := c.Version(); opt.Migration && v < versionGrown {
		return nil, &OpenError{Export: name, Err: fmt.Errorf("%w: a disk has two writers from RNBD %v on, and it speaks %v; update it first", ErrVersion, versionGrown, v)}
	}
	d := &Disk{c: c, name: name, access: accessRW, claim: opt.Claim, keep: opt.Keep, opening: make(chan struct{}, 1)}
	d.anyone = &diskUser{Disk: d}
	if !d.claim.Life.IsZero() {
		d.writes.acked.Add(1) // how many is unknown
	}
	if d.claim.Attachment.IsZero() {
		d.claim.Attachment = block.NewID()
	}
	switch {
	case opt.ReadOnly:
		d.access = accessRO
	case opt.Migration:
		d.access = accessMigration
	}
	// The disk is in the list before it is opened, so that a path that is lost
	// meanwhile opens it again.
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, &OpenError{Export: name, Err: ErrClosed}
	}
	if d.id = c.newIDLocked(); d.id == 0 {
		c.mu.Unlock()
		return nil, &OpenError{Export: name, Err: ErrTooManyDisks}
	}
	d.order = c.orderLocked(name)
	c.disks = append(c.disks, d)
	d.share = c.rt.NewShare()
	c.mu.Unlock()
	for lost := false; ; lost = true {
		err := d.reopen(ctx, c.rt, nil)
		if err == nil {
			return d, nil
		}
		if errors.Is(err, ErrFenced) && opt.Claim.Writer {
			c.log.Error("a remote disk was fenced while this host was away; its I/O fails until it is attached anew", "export", name, "error", err)
			return d, nil
		}
		if errors.Is(err, rtrs.ErrPathLost) {
			continue
		}
		d.beginClose()
		if mayOpenLate(ctx, lost) {
			c.releaseLater(d)
		} else {
			c.forgetDisk(d)
		}
		return nil, err
	}
}

// orderLocked returns the order of an export's writes in this session. A disk that is being
// closed may have some under way.
func (c *Client) orderLocked(name string) *writeOrder {
	if i := slices.IndexFunc(c.disks, func(d *Disk) bool { return d.name == name }); i >= 0 {
		return c.disks[i].order
	}
	return new(writeOrder)
}

// releaseLater makes the server close a disk's device in the background, however long
// that takes, and forgets it.
func (c *Client) releaseLater(d *Disk) {
	c.background(func() {
		defer c.forgetDisk(d)
		if err := d.release(c.ctx); err != nil && c.ctx.Err() == nil {
			c.log.Warn("the server does not close a disk", "export", d.name, "error", err)
		}
	})
}

// background runs f, which Close waits for, unless the client is closed.
func (c *Client) background(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.wg.Go(f)
	}
}

func (c *Client) forgetDisk(d *Disk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disks = slices.DeleteFunc(c.disks, func(x *Disk) bool { return x == d })
	d.share.Close()
}

// List returns the exports that the server offers to this host. It fails with ctx's
// error, with rtrs.ErrClosed after Close, and with ErrWire for a malformed answer.
func (c *Client) List(ctx context.Context) ([]Listed, error) {
	var list []Listed
	answer := make([]byte, listAnswer)
	for next := uint32(0); ; {
		req := numMsg{N: next}
		err := c.rt.Control(ctx, req.Append(nil, msgList), answer)
		if errors.Is(err, rtrs.ErrPathLost) {
			list, next = nil, 0
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("rnbd: list the exports of %s: %w", c.rt.Info().Remote, err)
		}
		var rsp listRsp
		if err := rsp.Parse(answer); err != nil {
			return nil, err
		}
		list = append(list, rsp.Entries...)
		switch {
		case rsp.Next == 0:
			return list, nil
		case rsp.Next <= next || len(rsp.Entries) == 0 || len(list) > maxListed:
			return nil, wireErr("a list of exports that does not end")
		}
		next = rsp.Next
	}
}

// Disks returns the open disks.
func (c *Client) Disks() []*Disk {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.disks), (*Disk).isClosing)
}

// Session returns the session, whose paths and policy may be changed. It ends with the
// Client: nobody else closes it.
func (c *Client) Session() *rtrs.Client { return c.rt }

// Version is the version that was agreed on with the server.
func (c *Client) Version() rtrs.Protocol { return rtrs.Protocol(c.version.Load()) }

// Info returns the state of the session.
func (c *Client) Info() rtrs.ClientInfo { return c.rt.Info() }

// Close ends the session and with it all disks; I/O in flight fails with
// ESHUTDOWN. It is idempotent.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	err := c.rt.Close()
	c.wg.Wait()
	return err
}
