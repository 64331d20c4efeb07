// Package sa is the directory of a fabric: a subnet administrator (SA; IBTA specification, volume 1, chapter 15) with the
// enhanced trust model, as an engine without I/O and clock. A manager host's daemon drives it:
//
//	s := sa.New(sa.Config{Options: sa.DefaultOptions(), Key: key, GUID: ours, Log: ..., Activity: ...})
//	lid, out, err := s.PortUp(now, sa.Port{GUID: guid, Name: "alpha"}) // a host has a stream with us
//	out = s.Handle(now, sa.Requester{GUID: guid}, packet)              // one RDMAP Send of that stream
//	out = s.Announce(now, notice)                                      // a path is gone, say
//	out = s.Tick(now)                                                  // about once in a second
//	out = s.PortDown(now, guid)                                        // the stream has ended
//
// Each call returns the packets that are to be sent: answers and reports, each to the port To. Those to one port keep their order.
// A packet to a port whose stream has ended is dropped by the caller. A Server has no lock: the caller has one around all of its
// methods, the views (Ports, Services, Subscriptions, GUIDs, Groups, Drops) included.
//
// The directory tells and never decides. It adds no peers, identities, SAs or permissions; one that lies can
// misdirect a host to another that the host trusts anyway, or withhold an answer, and nothing else.
//
// # Who asks
//
// A requester is the port whose stream brought the request: the GUID of the identity that IKE has authenticated. LIDs are the server's
// own (PortUp returns them), and a LID or GID in a record is a claim about a subject, never about the requester. A vport, a local user of
// a host, is told by the SGID of the request: its host has set it, and speaks for its vports.
// Where several managers serve, each has its own directory: a client registers with each, and asks one.
//
// # What is registered
//
// ServiceRecords end by their lease, by Delete, and with the port that has registered them; multicast memberships, alias GUIDs and event
// subscriptions likewise, without a lease. A port that is down keeps all of it, counted against its limits, for 30 seconds. A
// record is changed by the requester that has registered it (its host, for a vport), by the port that it is about, by who has the SA_Key, and, a
// service, by who knows its ServiceKey. When the port that a record is about registers it, the record is that port's from then on.
//
// A ServiceRecord that is a disk has its size in bytes in the first 64-bit word of ServiceData; the rest of ServiceData is the
// client's. Events about services are reported by themselves: mad.VendorExportCome, VendorExportGone, VendorExportResized. So are
// hosts (traps 64 and 65) and groups (66 and 67). mad.VendorEventsLost says that some were not reported, since there were too many:
// who gets it reads the records anew, as one does after each new stream, since nothing is kept for a port that is down.
//
// # Answers
//
// Requests get one answer: a MAD, or for GetTable a table in segments (RMPP), which leave as mad.Receiver acknowledges them. A
// dropped request gets none and does not end the stream. Reports are repeated until they are answered by ReportResp.
package sa
