package nbd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// negotiate runs the handshake ("Fixed newstyle negotiation"). On success the client
// has chosen an export and transmission begins.
func (c *conn) negotiate(ctx context.Context) error {
	deadline := time.Now().Add(c.srv.cfg.HandshakeTimeout)
	c.nc.SetDeadline(deadline)
	if ctx.Err() != nil {
		return ctx.Err() // the deadline just set may have replaced beginDrain's
	}
	b := binary.BigEndian.AppendUint64(nil, magicServer)
	b = binary.BigEndian.AppendUint64(b, magicOption)
	b = binary.BigEndian.AppendUint16(b, flagFixedNewstyle|flagNoZeroes)
	if _, err := c.nc.Write(b); err != nil {
		return err
	}
	if err := c.receiveAtLeast(4); err != nil {
		return err
	}
	flags := binary.BigEndian.Uint32(c.buf[c.r:])
	c.r += 4
	if flags&^(flagFixedNewstyle|flagNoZeroes) != 0 {
		return fmt.Errorf("unknown client flags %#x", flags)
	}
	c.noZeroes = flags&flagNoZeroes != 0
	for c.exp == nil {
		if err := c.handleOption(); err != nil {
			return err
		}
	}
	c.nc.SetDeadline(time.Time{})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}

// handleOption handles one option. It sets c.exp when the client has chosen.
func (c *conn) handleOption() error {
	if err := c.receiveAtLeast(optionHeaderLen); err != nil {
		return err
	}
	h, err := parseOptionHeader(c.buf[c.r:])
	if err != nil {
		return fmt.Errorf("option header: %w", err)
	}
	c.r += optionHeaderLen
	if h.length > maxOptionData {
		if err := c.discard(int(h.length)); err != nil {
			return err
		}
		if h.option == optExportName {
			return fmt.Errorf("export name of %d bytes", h.length)
		}
		return c.replyToOption(h.option, repErrTooBig, "option data too long")
	}
	if err := c.receiveAtLeast(int(h.length)); err != nil {
		return err
	}
	data := c.buf[c.r : c.r+int(h.length)]
	c.r += int(h.length)
	switch h.option {
	case optExportName:
		return c.handleExportName(string(data))
	case optAbort:
		c.replyToOption(h.option, repAck, "")
		return errAborted
	case optList:
		return c.handleList(data)
	case optInfo, optGo:
		return c.handleInfo(h.option, data)
	case optStructuredReply, optExtendedHeaders:
		switch {
		case len(data) != 0:
			return c.replyToOption(h.option, repErrInvalid, "this option has no data")
		case h.option == optExtendedHeaders:
			c.extended = true
		case c.extended:
			return c.replyToOption(h.option, repErrExtHeaders, "extended headers are negotiated already")
		}
		c.structured = true
		return c.replyToOption(h.option, repAck, "")
	case optListMetaContext, optSetMetaContext:
		return c.handleMetaContexts(h.option, data)
	case optStartTLS:
		return c.replyToOption(h.option, repErrPolicy, "this server has no TLS, as its socket is for programs of this host; between hosts everything is protected by IPsec")
	}
	return c.replyToOption(h.option, repErrUnsup, "unknown option")
}

// replyToOption sends an option's only or last reply.
func (c *conn) replyToOption(option, typ uint32, words string) error {
	_, err := c.nc.Write(appendOptionReply(nil, option, typ, []byte(words)))
	return err
}

// handleExportName handles NBD_OPT_EXPORT_NAME, which has no way to report an error.
func (c *conn) handleExportName(name string) error {
	e := c.srv.lookup(name)
	switch {
	case c.extended: // "a client MUST NOT use"
		return errors.New("an export was chosen by a simple option after extended headers were negotiated")
	case e == nil:
		return fmt.Errorf("there is no export %.80q", name)
	}
	g := geometry(e.device.Geometry()).withDefaults()
	b := binary.BigEndian.AppendUint64(nil, g.Size)
	b = binary.BigEndian.AppendUint16(b, g.transmissionFlags(c.features))
	if !c.noZeroes {
		b = append(b, make([]byte, 124)...)
	}
	if _, err := c.nc.Write(b); err != nil {
		return err
	}
	c.chooseExport(e, g)
	return nil
}

// handleMetaContexts handles NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT.
func (c *conn) handleMetaContexts(option uint32, data []byte) error {
	set := option == optSetMetaContext
	if set {
		c.allocationOf = nil // "replaces all previously-set metadata contexts (including when this command fails)"
	}
	r, err := parseMetaRequest(data)
	if err == nil && set && !c.structured {
		err = errors.New("negotiate structured replies first")
	}
	if err != nil {
		return c.replyToOption(option, repErrInvalid, err.Error())
	}
	e := c.srv.lookup(r.name)
	if e == nil {
		return c.replyToOption(option, repErrUnknown, fmt.Sprintf("there is no export %.80q", r.name))
	}
	var b []byte
	if e.device.Geometry().CanStatus && r.selects(!set) {
		id := uint32(0)
		if set {
			c.allocationOf, id = e, allocationID
		}
		b = appendOptionReply(b, option, repMetaContext, binary.BigEndian.AppendUint32(nil, id), []byte(allocationContext))
	}
	_, err = c.nc.Write(appendOptionReply(b, option, repAck))
	return err
}

func (c *conn) handleList(data []byte) error {
	if len(data) != 0 {
		return c.replyToOption(optList, repErrInvalid, "this option has no data")
	}
	var b []byte
	for _, e := range c.srv.list() {
		n := binary.BigEndian.AppendUint32(nil, uint32(len(e.name)))
		b = appendOptionReply(b, optList, repServer, n, []byte(e.name), []byte(e.description))
	}
	_, err := c.nc.Write(appendOptionReply(b, optList, repAck))
	return err
}

// handleInfo handles NBD_OPT_INFO and NBD_OPT_GO.
func (c *conn) handleInfo(option uint32, data []byte) error {
	r, err := parseInfoRequest(data)
	if err != nil {
		return c.replyToOption(option, repErrInvalid, err.Error())
	}
	e := c.srv.lookup(r.name)
	if e == nil {
		return c.replyToOption(option, repErrUnknown, fmt.Sprintf("there is no export %.80q", r.name))
	}
	g := geometry(e.device.Geometry()).withDefaults()
	var b []byte
	add := func(id uint16, payload []byte) {
		b = appendOptionReply(b, option, repInfo, binary.BigEndian.AppendUint16(nil, id), payload)
	}
	p := binary.BigEndian.AppendUint64(nil, g.Size)
	add(infoExport, binary.BigEndian.AppendUint16(p, g.transmissionFlags(c.features)))
	if r.wants(infoName) {
		add(infoName, []byte(e.name))
	}
	if r.wants(infoDescription) && e.description != "" {
		add(infoDescription, []byte(e.description))
	}
	// Sent unrequested, too: the protocol allows it, and clients that use it
	// perform better.
	p = binary.BigEndian.AppendUint32(nil, g.MinBlock)
	p = binary.BigEndian.AppendUint32(p, g.PreferredBlock)
	add(infoBlockSize, binary.BigEndian.AppendUint32(p, g.advertisedMax()))
	if _, err := c.nc.Write(appendOptionReply(b, option, repAck)); err != nil {
		return err
	}
	if option == optGo {
		c.chooseExport(e, g)
	}
	return nil
}

// chooseExport ends the negotiation with an export. Metadata contexts are those of one.
func (c *conn) chooseExport(e *export, g geometry) {
	c.exp, c.geo = e, g
	c.allocation = c.allocationOf == e
	c.size.Store(g.Size)
}
