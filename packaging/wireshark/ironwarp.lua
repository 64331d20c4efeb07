-- What Wireshark (3.6 and later) lacks for the captures of `ironwarp capture`:
--   DDP over SCTP (RFC 5043), and FPDUs whose payload was cut off,
--   RTRS, RNBD and iSER (RFC 7145) in messages, in RDMA Writes and in Immediate Data.
-- Copy it into the directory that Help > About Wireshark > Folders calls "Personal Lua Plugins", or run
-- `tshark -X lua_script:ironwarp.lua`.

local ddp = Dissector.get("iwarp_ddp_rdmap")
local iscsi = Dissector.get("iscsi")

-- Protocols and fields.

local p_session = Proto("ddp_sctp", "DDP over SCTP")
local p_cut = Proto("iwarp_mpa_cut", "MPA FPDU without payload")
local p_ulp = Proto("iwarp_ulp", "IronWarp's ULPs")
local p_rtrs = Proto("iwarp_rtrs", "RTRS over iWARP")
local p_rnbd = Proto("iwarp_rnbd", "RNBD over iWARP")
local p_iser = Proto("iwarp_iser", "iSER over iWARP")

local functions = { [1] = "Initiate", [2] = "Accept", [3] = "Reject", [4] = "Terminate",
	[5] = "Enhanced Initiate", [6] = "Enhanced Accept", [7] = "Enhanced Reject" }
local fs = {
	ssn = ProtoField.uint16("ddp_sctp.ssn", "DDP-SSN"),
	func = ProtoField.uint16("ddp_sctp.function", "Function", base.DEC, functions),
	ird = ProtoField.uint16("ddp_sctp.ird", "IRD", base.DEC, nil, 0x3fff),
	ord = ProtoField.uint16("ddp_sctp.ord", "ORD", base.DEC, nil, 0x3fff),
	private = ProtoField.bytes("ddp_sctp.privatedata", "Private data"),
	cut = ProtoField.uint32("ddp_sctp.cut", "Bytes that were not captured"),
}
p_session.fields = { fs.ssn, fs.func, fs.ird, fs.ord, fs.private, fs.cut }

local fc = {
	length = ProtoField.uint16("iwarp_mpa_cut.ulpdulength", "ULPDU length"),
	cut = ProtoField.uint32("iwarp_mpa_cut.cut", "Bytes that were not captured"),
	stag = ProtoField.uint32("iwarp_mpa_cut.inval_stag", "Invalidate STag", base.HEX),
	qn = ProtoField.uint32("iwarp_mpa_cut.qn", "Queue number"),
	msn = ProtoField.uint32("iwarp_mpa_cut.msn", "Message sequence number"),
	mo = ProtoField.uint32("iwarp_mpa_cut.mo", "Message offset"),
}
p_cut.fields = { fc.length, fc.cut, fc.stag, fc.qn, fc.msn, fc.mo }

local rtrs_types = { [0] = "INFO_REQ", [1] = "INFO_RSP", [2] = "WRITE", [3] = "READ" }
local imm_types = { [0] = "IO_REQ", [1] = "IO_RSP", [8] = "heartbeat", [9] = "heartbeat's answer", [10] = "bye" }
local fr = {
	type = ProtoField.uint16("iwarp_rtrs.type", "Message", base.DEC, rtrs_types),
	name = ProtoField.string("iwarp_rtrs.name", "Session name"),
	errno = ProtoField.uint16("iwarp_rtrs.errno", "Error"),
	chunks = ProtoField.uint16("iwarp_rtrs.chunks", "Chunks"),
	usrlen = ProtoField.uint16("iwarp_rtrs.usr_len", "User header length"),
	seq = ProtoField.uint32("iwarp_rtrs.seq", "Turn of the chunk"),
	to = ProtoField.uint64("iwarp_rtrs.to", "Offset", base.HEX),
	stag = ProtoField.uint32("iwarp_rtrs.stag", "STag", base.HEX),
	len = ProtoField.uint32("iwarp_rtrs.len", "Length"),
	imm = ProtoField.uint8("iwarp_rtrs.imm", "Immediate", base.DEC, imm_types),
	id = ProtoField.uint32("iwarp_rtrs.chunk", "Chunk"),
	off = ProtoField.uint32("iwarp_rtrs.offset", "Offset of the message"),
	version = ProtoField.string("iwarp_rtrs.version", "Version"),
	cid = ProtoField.uint16("iwarp_rtrs.cid", "Connection"),
	cids = ProtoField.uint16("iwarp_rtrs.cids", "Connections of the path"),
	depth = ProtoField.uint16("iwarp_rtrs.queue_depth", "Queue depth"),
	maxio = ProtoField.uint32("iwarp_rtrs.max_io", "Longest I/O"),
	session = ProtoField.guid("iwarp_rtrs.session", "Session"),
	path = ProtoField.guid("iwarp_rtrs.path", "Path"),
}
p_rtrs.fields = { fr.type, fr.name, fr.errno, fr.chunks, fr.usrlen, fr.seq, fr.to, fr.stag, fr.len, fr.imm, fr.id, fr.off,
	fr.version, fr.cid, fr.cids, fr.depth, fr.maxio, fr.session, fr.path }

local rnbd_types = { [0] = "SESS_INFO", [1] = "SESS_INFO_RSP", [2] = "OPEN", [3] = "OPEN_RSP", [4] = "IO", [5] = "CLOSE",
	[6] = "LIST", [7] = "LIST_RSP", [8] = "GROWN", [9] = "GROWN_RSP" }
local rnbd_ops = { [0] = "read", [1] = "write", [2] = "flush", [3] = "discard", [4] = "secure erase", [5] = "write zeroes",
	[16] = "cache", [17] = "status" }
local fn = {
	type = ProtoField.uint16("iwarp_rnbd.type", "Message", base.DEC, rnbd_types),
	version = ProtoField.string("iwarp_rnbd.version", "Version"),
	access = ProtoField.uint8("iwarp_rnbd.access", "Access", base.DEC, { [0] = "read only", [1] = "read and write", [2] = "migration" }),
	name = ProtoField.string("iwarp_rnbd.name", "Export"),
	device = ProtoField.uint32("iwarp_rnbd.device", "Device"),
	sector = ProtoField.uint64("iwarp_rnbd.sector", "Sector"),
	op = ProtoField.uint8("iwarp_rnbd.op", "Operation", base.DEC, rnbd_ops),
	flags = ProtoField.uint32("iwarp_rnbd.flags", "Flags", base.HEX),
	size = ProtoField.uint32("iwarp_rnbd.size", "Size"),
	sectors = ProtoField.uint64("iwarp_rnbd.sectors", "Sectors"),
	result = ProtoField.uint8("iwarp_rnbd.result", "Result"),
}
p_rnbd.fields = { fn.type, fn.version, fn.access, fn.name, fn.device, fn.sector, fn.op, fn.flags, fn.size, fn.sectors, fn.result }

local iser_ops = { [1] = "control-type PDU", [2] = "Hello", [3] = "HelloReply" }
local fi = {
	op = ProtoField.uint8("iwarp_iser.opcode", "Type", base.DEC, iser_ops, 0xf0),
	wsv = ProtoField.bool("iwarp_iser.wsv", "Write STag valid", 8, nil, 0x08),
	rsv = ProtoField.bool("iwarp_iser.rsv", "Read STag valid", 8, nil, 0x04),
	wstag = ProtoField.uint32("iwarp_iser.write_stag", "Write STag", base.HEX),
	wbase = ProtoField.uint64("iwarp_iser.write_base", "Write Base Offset", base.HEX),
	rstag = ProtoField.uint32("iwarp_iser.read_stag", "Read STag", base.HEX),
	rbase = ProtoField.uint64("iwarp_iser.read_base", "Read Base Offset", base.HEX),
	max = ProtoField.uint8("iwarp_iser.max_version", "MaxVer", base.DEC, nil, 0xf0),
	ver = ProtoField.uint8("iwarp_iser.version", "MinVer or CurVer", base.DEC, nil, 0x0f),
	depth = ProtoField.uint16("iwarp_iser.depth", "iSER-IRD or iSER-ORD"),
}
p_iser.fields = { fi.op, fi.wsv, fi.rsv, fi.wstag, fi.wbase, fi.rstag, fi.rbase, fi.max, fi.ver, fi.depth }

local f_stream = Field.new("tcp.stream")
local f_seq = Field.new("tcp.seq_raw")
local f_payload = Field.new("tcp.payload")
local f_length = Field.new("tcp.len")
local f_checksum = Field.new("sctp.checksum")
local f_sid = Field.new("sctp.data_sid")

local sends = { [3] = "Send", [4] = "Send with Invalidate", [5] = "Send with SE", [6] = "Send with SE and Invalidate" }

-- rdma has Wireshark dissect a DDP segment. Of one that is shorter than its headers say, it shows as much as there is, and says
-- that it is malformed; that is no error of ours.
local function rdma(seg, pinfo, tree)
	pcall(ddp.call, ddp, seg, pinfo, tree)
end

-- headers dissects a DDP segment whose payload was cut off. Of a Send, Wireshark would take nothing for a message.
local function headers(seg, pinfo, tree)
	local what = seg:len() == 18 and seg(0, 1):uint() < 0x80 and sends[seg(1, 1):uint() % 16]
	if not what then
		rdma(seg, pinfo, tree)
		return
	end
	local t = tree:add(p_cut, seg(), what)
	t:add(fc.stag, seg(2, 4))
	t:add(fc.qn, seg(6, 4))
	t:add(fc.msn, seg(10, 4))
	t:add(fc.mo, seg(14, 4))
	pinfo.cols.protocol = "DDP/RDMA"
	local last = seg(0, 1):uint() % 0x80 >= 0x40 and "last DDP segment" or "more DDP segments"
	pinfo.cols.info = string.format("%d > %d %s [%s]", pinfo.src_port, pinfo.dst_port, what, last)
end

-- Streams, by the index of the TCP connection or by addresses, ports and number of the SCTP stream.
local streams = {}

function p_ulp.init() streams = {} end

local function endpoint(addr, port) return tostring(addr) .. ":" .. tostring(port) end

-- learn notes by the private data of a request or reply which ULP has a stream.
local function learn(s, pd, reply)
	if pd:len() >= 16 and pd(0, 4):string() == "IWrp" then
		if pd:len() == 16 then return end
		pd = pd(16):tvb()
	end
	if not reply and pd:len() >= 56 and pd(0, 4):uint() == 0x0000bd1b then s.ulp = "rtrs" end
	if reply and s.ulp == "rtrs" and pd:len() >= 56 and pd(0, 2):le_uint() == 0x1bbd then
		s.bits = 28
		local d = pd(6, 2):le_uint() - 1
		while d > 0 do s.bits, d = s.bits - 1, math.floor(d / 2) end
	end
	return pd
end

local function startup_tree(s, pd, reply, tree)
	if s.ulp ~= "rtrs" or not pd or pd:len() < 56 then return end
	local t = tree:add(p_rtrs, pd())
	if not reply then
		t:add(fr.version, pd(4, 2), string.format("%d.%d", pd(5, 1):uint(), pd(4, 1):uint()))
		t:add_le(fr.cid, pd(6, 2))
		t:add_le(fr.cids, pd(8, 2))
		t:add(fr.path, pd(12, 16))
		t:add(fr.session, pd(28, 16))
	else
		t:add(fr.version, pd(2, 2), string.format("%d.%d", pd(3, 1):uint(), pd(2, 1):uint()))
		t:add_le(fr.errno, pd(4, 2))
		t:add_le(fr.depth, pd(6, 2))
		t:add_le(fr.maxio, pd(8, 4))
	end
end

-- RNBD. b is a message. It returns what it is for the packet list.
local function rnbd(b, tree)
	if b:len() < 4 then return nil end
	local typ = b(0, 2):le_uint()
	local name = rnbd_types[typ]
	if not name then return nil end
	local t = tree:add(p_rnbd, b())
	t:add_le(fn.type, b(0, 2))
	local n = b:len()
	if (typ == 0 or typ == 1) and n >= 36 then
		t:add(fn.version, b(4, 2), string.format("%d.%d", b(4, 1):uint(), b(5, 1):uint()))
	elseif typ == 2 and n >= 312 then
		t:add(fn.access, b(4, 1))
		t:add(fn.name, b(6, 255), b(6, 255):stringz())
		name = name .. " " .. b(6, 255):stringz()
	elseif typ == 3 and n >= 208 then
		t:add_le(fn.device, b(4, 4))
		t:add_le(fn.sectors, b(8, 8))
		t:add(fn.result, b(88, 1))
	elseif typ == 4 and n >= 32 then
		t:add_le(fn.device, b(4, 4))
		t:add_le(fn.sector, b(8, 8))
		t:add(fn.op, b(16, 1))
		t:add_le(fn.flags, b(16, 4))
		t:add_le(fn.size, b(20, 4))
		name = string.format("%s %d bytes at sector %s", rnbd_ops[b(16, 1):uint()] or name, b(20, 4):le_uint(), tostring(b(8, 8):le_uint64()))
	elseif (typ == 5 or typ == 6 or typ == 8) and n >= 8 then
		t:add_le(fn.device, b(4, 4))
	end
	return "RNBD " .. name
end

-- The RTRS message at the end of what a client has written into a chunk, and the user's header before it.
local function rtrs_request(b, tree)
	local n = b:len()
	local at
	if n >= 28 and b(n - 28, 2):le_uint() == 3 and b(n - 24, 4):le_uint() == 0x00010000 then
		at = n - 28
	elseif n >= 8 and b(n - 8, 2):le_uint() == 2 then
		at = n - 8
	else
		return nil
	end
	local t = tree:add(p_rtrs, b(at))
	local typ, usr = b(at, 2):le_uint(), b(at + 2, 2):le_uint()
	t:add_le(fr.type, b(at, 2))
	t:add_le(fr.usrlen, b(at + 2, 2))
	if typ == 3 then
		t:add_le(fr.to, b(at + 8, 8))
		t:add_le(fr.stag, b(at + 16, 4))
		t:add_le(fr.len, b(at + 20, 4))
		t:add_le(fr.seq, b(at + 24, 4))
	else
		t:add_le(fr.seq, b(at + 4, 4))
	end
	local info = "RTRS " .. rtrs_types[typ]
	if usr > 0 and usr <= at then
		local what = rnbd(b(at - usr, usr):tvb(), tree)
		if what then info = info .. ", " .. what end
	end
	return info
end

local function rtrs_send(b, tree)
	if b:len() < 24 then return nil end
	local typ = b(0, 2):le_uint()
	if typ ~= 0 and typ ~= 1 then return nil end
	local t = tree:add(p_rtrs, b())
	t:add_le(fr.type, b(0, 2))
	if typ == 0 and b:len() >= 257 then
		t:add(fr.name, b(2, 255), b(2, 255):stringz())
	elseif typ == 1 then
		t:add_le(fr.chunks, b(2, 2))
		t:add_le(fr.errno, b(4, 2))
		for i = 0, b(2, 2):le_uint() - 1 do
			local at = 24 + 16 * i
			if i >= 64 or at + 16 > b:len() then break end
			t:add_le(fr.to, b(at, 8))
			t:add_le(fr.stag, b(at + 8, 4))
			t:add_le(fr.len, b(at + 12, 4))
		end
	end
	return "RTRS " .. rtrs_types[typ]
end

local function rtrs_imm(s, b, tree)
	local t = tree:add(p_rtrs, b(0, 8))
	local low, stag = b(4, 4):uint(), b(0, 4):uint()
	local typ, v = math.floor(low / 2 ^ 28), low % 2 ^ 28
	t:add(fr.imm, b(4, 1), typ)
	local info = "RTRS " .. (imm_types[typ] or "immediate")
	if typ == 0 and s.bits then
		t:add(fr.id, b(4, 4), math.floor(v / 2 ^ s.bits))
		t:add(fr.off, b(4, 4), v % 2 ^ s.bits)
		info = string.format("%s chunk %d", info, math.floor(v / 2 ^ s.bits))
	elseif typ == 1 then
		t:add(fr.id, b(4, 4), v % 2 ^ 19)
		t:add(fr.errno, b(4, 4), math.floor(v / 2 ^ 19))
		t:add(fr.stag, b(0, 4))
		info = string.format("%s chunk %d error %d", info, v % 2 ^ 19, math.floor(v / 2 ^ 19))
	end
	return info
end

local iscsi_ops = {}
for _, op in ipairs({ 0x00, 0x01, 0x02, 0x03, 0x04, 0x06, 0x10, 0x20, 0x21, 0x22, 0x23, 0x24, 0x26, 0x31, 0x32, 0x3f }) do iscsi_ops[op] = true end

local function iser(b, pinfo, tree)
	local n = b:len()
	if n < 28 then return nil end
	local op = math.floor(b(0, 1):uint() / 16)
	local hello = op == 2 or op == 3
	if hello and (n ~= 28 or math.floor(b(1, 1):uint() / 16) ~= 10) then return nil end
	if not hello and (op ~= 1 or n < 76 or b(0, 1):uint() % 4 ~= 0 or b(1, 3):uint() ~= 0 or not iscsi_ops[b(28, 1):uint() % 64]) then return nil end
	local t = tree:add(p_iser, b(0, 28))
	t:add(fi.op, b(0, 1))
	if hello then
		t:add(fi.max, b(1, 1))
		t:add(fi.ver, b(1, 1))
		t:add(fi.depth, b(2, 2))
		return "iSER " .. iser_ops[op]
	end
	t:add(fi.wsv, b(0, 1))
	t:add(fi.rsv, b(0, 1))
	t:add(fi.wstag, b(4, 4))
	t:add(fi.wbase, b(8, 8))
	t:add(fi.rstag, b(16, 4))
	t:add(fi.rbase, b(20, 8))
	local info = tostring(pinfo.cols.info)
	if iscsi then pcall(iscsi.call, iscsi, b(28):tvb(), pinfo, tree) end
	pinfo.cols.info = info
	pinfo.cols.protocol = "iSER"
	return string.format("iSER, iSCSI opcode 0x%02x", b(28, 1):uint() % 64)
end

-- ulp dissects what a DDP segment carries for a ULP. s is its stream, seg the segment, and n its length on the stream.
local function ulp(s, ours, seg, n, pinfo, tree)
	if seg:len() < 14 then return end
	local b0, op = seg(0, 1):uint(), seg(1, 1):uint() % 16
	local tagged, last = b0 >= 0x80, b0 % 0x80 >= 0x40
	local hdr = tagged and 14 or 18
	if seg:len() <= hdr then return end
	local whole, body, what = seg:len() == n, seg(hdr):tvb(), nil
	if s.ulp == "rtrs" then
		if (op == 8 or op == 9) and not tagged and body:len() >= 8 then
			what = rtrs_imm(s, body, tree)
		elseif whole and op == 0 and tagged and last then
			if ours then
				what = rtrs_request(body, tree)
			elseif (body:len() == 208 and body(0, 4):le_uint() == 3) or (body:len() == 36 and body(0, 4):le_uint() == 1) then
				what = rnbd(body, tree)
			end
		elseif whole and not tagged and op >= 3 and op <= 6 and seg(14, 4):uint() == 0 then
			what = rtrs_send(body, tree)
		end
	elseif whole and not tagged and op >= 3 and op <= 6 and seg(14, 4):uint() == 0 then
		what = iser(body, pinfo, tree)
	end
	if what then pinfo.cols.info:append(" [" .. what .. "]") end
end

-- MPA on TCP.

-- unmarked takes the markers out of an FPDU that begins at offset pos of their grid.
local function unmarked(b, pos)
	local out, at, marker = ByteArray.new(), 0, (512 - pos) % 512
	while at < b:len() do
		if at == marker then
			at, marker = at + 4, marker + 512
		else
			local n = math.min(marker, b:len()) - at
			out:append(b:subset(at, n))
			at = at + n
		end
	end
	return out
end

-- tcp looks at a TCP segment of which b is captured, and length bytes were sent.
local function tcp(b, length, pinfo, tree)
	if b:len() < 8 then return end
	local key, from = "tcp" .. f_stream().value, endpoint(pinfo.src, pinfo.src_port)
	local s = streams[key]
	if b:len() >= 20 and b:raw(0, 8) == "MPA ID R" then
		local reply, flags = b:raw(8, 8) == "ep Frame", b:get_index(16)
		if not reply then
			s = { from = from, first = {} }
			streams[key] = s
		end
		if not s then return end
		-- Who sends M wants markers in what it receives.
		s[reply and "reply_markers" or "request_markers"] = flags >= 0x80
		s.up = s.up or reply
		local at = 20
		if math.floor(flags / 16) % 2 == 1 and b:get_index(17) >= 2 then at = 24 end
		if b:len() > at then
			startup_tree(s, learn(s, b:subset(at, b:len() - at):tvb("Private data"), reply), reply, tree)
		end
		return
	end
	if not s or not s.up then return end
	local ours, cut = s.from == from, length - b:len()
	local markers = s.request_markers
	if ours then markers = s.reply_markers end
	if markers then
		local seq = f_seq().value
		s.first[ours] = s.first[ours] or seq
		b = unmarked(b, (seq - s.first[ours]) % 2 ^ 32 % 512)
	end
	if b:len() < 2 then return end
	local n = b:get_index(0) * 256 + b:get_index(1)
	local have = math.min(n, b:len() - 2)
	if have == 0 then return end
	local seg = b:subset(2, have):tvb("DDP segment")
	if cut > 0 then -- otherwise Wireshark has dissected it
		local t = tree:add(p_cut, seg())
		t:add(fc.length, n):set_generated()
		t:add(fc.cut, cut):set_generated()
		headers(seg, pinfo, tree)
	end
	ulp(s, ours, seg, n, pinfo, tree)
end

-- DDP over SCTP.

local function session_of(pinfo, sid, make)
	local a, b = endpoint(pinfo.src, pinfo.src_port), endpoint(pinfo.dst, pinfo.dst_port)
	local key = (a < b and a .. " " .. b or b .. " " .. a) .. " " .. sid
	if make then streams[key] = { from = a } end
	return streams[key], a
end

local p_control = Proto("ddp_sctp_control", "DDP Stream Session Control")

function p_control.dissector(tvb, pinfo, tree)
	if tvb:len() < 4 then return 0 end
	local t = tree:add(p_session, tvb())
	t:add(fs.ssn, tvb(0, 2))
	t:add(fs.func, tvb(2, 2))
	local func = tvb(2, 2):uint()
	pinfo.cols.protocol = "DDP/SCTP"
	pinfo.cols.info = "DDP Stream Session " .. (functions[func] or "Control")
	local at = 4
	if func >= 5 and tvb:len() >= 8 then
		t:add(fs.ird, tvb(4, 2))
		t:add(fs.ord, tvb(6, 2))
		at = 8
	end
	local s = session_of(pinfo, f_sid().value, func == 1 or func == 5)
	if tvb:len() > at then
		t:add(fs.private, tvb(at))
		if s then
			local reply = func ~= 1 and func ~= 5
			startup_tree(s, learn(s, tvb(at):tvb(), reply), reply, tree)
		end
	end
	return tvb:len()
end

-- segment dissects a chunk of length bytes, of which tvb is captured.
local function segment(tvb, length, sid, pinfo, tree)
	local t = tree:add(p_session, tvb(0, 2))
	t:add(fs.ssn, tvb(0, 2))
	if length > tvb:len() then t:add(fs.cut, length - tvb:len()):set_generated() end
	local seg = tvb(2):tvb()
	if length > tvb:len() then
		headers(seg, pinfo, tree)
	else
		rdma(seg, pinfo, tree)
	end
	local s, from = session_of(pinfo, sid)
	if s then ulp(s, s.from == from, seg, length - 2, pinfo, tree) end
end

function p_session.dissector(tvb, pinfo, tree)
	if tvb:len() < 4 then return 0 end
	segment(tvb, tvb:reported_len(), f_sid().value, pinfo, tree)
	return tvb:len()
end

local ppi = DissectorTable.get("sctp.ppi")
ppi:add(16, p_session)
ppi:add(17, p_control)

-- A postdissector puts the ULP behind the protocols below it, and dissects what Wireshark gives up since it was cut.

function p_ulp.dissector(tvb, pinfo, tree)
	local payload, checksum = f_payload(), f_checksum()
	if payload then
		tcp(payload.range:bytes(), f_length().value, pinfo, tree)
	elseif checksum and tvb:reported_len() > tvb:len() then
		local at = checksum.offset + 4
		if tvb:len() < at + 16 + 2 or tvb(at, 1):uint() ~= 0 then return end
		local ppid = tvb(at + 12, 4):uint()
		if ppid == 16 then segment(tvb(at + 16):tvb(), tvb(at + 2, 2):uint() - 16, tvb(at + 8, 2):uint(), pinfo, tree) end
	end
end

register_postdissector(p_ulp)
