package directory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
	election "github.com/ironwarp/ironwarp/fabric/manager"
	"github.com/ironwarp/ironwarp/internal/rate"
)

// ErrNoAgent: a host does not answer its managers.
var ErrNoAgent = errors.New("the host's agent does not answer: it is off (`fabric: {agent: true}` on that host turns it on), or no key of this manager opens it")

// ErrNotMaster: another manager is the master.
var ErrNotMaster = errors.New("this host is not the master of the fabric, which manages its hosts; `ironwarp fabric managers` shows which is")

// errNoHost: a host has no stream with this manager.
var errNoHost = errors.New("the host has no stream with this manager")

// portKey is the M_Key of a port, and whether a manager has set it there.
func (k *keeper) portKey(port mad.GUID) (mad.Key, bool) {
	k.keysMu.Lock()
	defer k.keysMu.Unlock()
	return k.settings.Load().KeyOf(port, k.portKeys)
}

func (k *keeper) candidates(port mad.GUID) []mad.Key {
	k.keysMu.Lock()
	defer k.keysMu.Unlock()
	return k.settings.Load().Candidates(port, k.portKeys)
}

func (k *keeper) recordKey(port mad.GUID, key mad.Key) error {
	k.keysMu.Lock()
	defer k.keysMu.Unlock()
	return k.portKeys.Set(map[mad.GUID]mad.Key{port: key})
}

// manageAll gives the hosts' agents the keys that the settings have for them, again and again: a host may have come, or a
// lease begun.
func (k *keeper) manageAll(ctx context.Context) {
	tick := time.NewTicker(manageEvery)
	defer tick.Stop()
	was := manageEvery
	for all := true; ; {
		if every := k.managePause(); every != was {
			tick.Reset(every)
			was = every
		}
		k.manageOnce(ctx, all)
		select {
		case <-ctx.Done():
			return
		case <-k.joined:
			all = false
		case <-tick.C:
			all = true
		}
	}
}

// managePause is the time between two looks at all hosts' keys.
func (k *keeper) managePause() time.Duration {
	if lease := time.Duration(k.settings.Load().MKeyLeasePeriod) * time.Second; lease > 0 {
		return min(manageEvery, max(lease/3, time.Second))
	}
	return manageEvery
}

// manageOnce gives agents their keys: all, or those of the hosts that have come since, of whom one that comes again and again is not to
// have all others asked.
func (k *keeper) manageOnce(ctx context.Context, all bool) {
	k.managing.Lock()
	defer k.managing.Unlock()
	if settings := k.settings.Load(); k.rotated == settings || !settings.HasMKey() || !k.d.manages().isMaster() {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k.mu.Lock()
	fresh := k.fresh
	k.fresh, k.endRound = map[mad.GUID]bool{}, cancel
	k.mu.Unlock()
	do := func(ctx context.Context, h *host) error {
		if !all && !fresh[h.GUID] {
			return nil
		}
		return k.manage(ctx, h)
	}
	for guid, err := range k.eachHost(ctx, do) {
		if !errors.Is(err, ErrNoAgent) && ctx.Err() == nil {
			k.d.cfg.Log.Warn("fabric: a host's agent does not take its keys", "peer", k.d.name(guid), "error", err)
		}
	}
}

// eachHost does something with each host, several at a time, and returns what has failed.
func (k *keeper) eachHost(ctx context.Context, do func(context.Context, *host) error) map[mad.GUID]error {
	k.mu.Lock()
	var all []*host
	for _, h := range k.hosts {
		if h.link != nil {
			all = append(all, h)
		}
	}
	k.mu.Unlock()
	failed := map[mad.GUID]error{}
	var mu sync.Mutex // guards failed
	var wg sync.WaitGroup
	slots := make(chan struct{}, managedAtOnce)
	for _, h := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := do(ctx, h); err != nil {
				mu.Lock()
				failed[h.GUID] = err
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

// open asks a host for its PortInfo by the keys that may open it, and returns the one that does. It fails with ErrNoAgent.
func (k *keeper) open(ctx context.Context, h *host) (info mad.PortInfo, key mad.Key, err error) {
	for _, key := range k.candidates(h.GUID) {
		info, err := k.askPortInfo(ctx, h, mad.MethodGet, key, nil)
		switch {
		case errors.Is(err, ErrSilence), err == nil && info.MKeyProtect == 1 && !info.MKey.Equal(key):
			// Another key opens it.
		case err == nil && info.MKeyProtect == 0:
			return info, info.MKey, nil // it is shown, whatever it was asked with
		default:
			return info, key, err
		}
	}
	return info, 0, ErrNoAgent
}

// askPortInfo gets or sets the PortInfo of a host. It fails with ErrSilence, a *StatusError, and ctx's error.
func (k *keeper) askPortInfo(ctx context.Context, h *host, method mad.Method, key mad.Key, to *mad.PortInfo) (info mad.PortInfo, err error) {
	smp := mad.SMP{Header: smpHeader(method, mad.AttrPortInfo, 1), MKey: key}
	if to != nil {
		copy(smp.Data[:], to.Append(nil))
	}
	times := asks
	if method == mad.MethodGet {
		times = agentAsks // there may be no agent, or another key opens it
	}
	answer, err := k.askAgent(ctx, h, smp, times)
	if err != nil {
		return info, err
	}
	return mad.ParsePortInfo(answer.Data[:mad.PortInfoLen])
}

func smpHeader(method mad.Method, attr mad.Attribute, modifier uint32) mad.Header {
	return mad.Header{Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: method, Attribute: attr, Modifier: modifier}
}

// askAgent asks a host's agent so often at most. It fails with ErrSilence, a *StatusError, and ctx's error.
func (k *keeper) askAgent(ctx context.Context, h *host, smp mad.SMP, times int) (answer mad.SMP, err error) {
	got, err := k.call.askTimes(ctx, h.port, k.packet(h, smp.MAD()), times)
	if err != nil {
		return answer, err
	}
	answer, err = mad.ParseSMP(&got)
	if err == nil && answer.Status != mad.StatusOK {
		err = &StatusError{smp.Method, smp.Attribute.Name(mad.ClassSubn), answer.Status}
	}
	return answer, err
}

// hostOf is a host that has a stream with this manager. It fails with errNoHost.
func (k *keeper) hostOf(guid mad.GUID) (*host, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.hosts[guid]; h != nil && h.link != nil {
		return h, nil
	}
	return nil, errNoHost
}

// packet is a MAD from this manager to a host.
func (k *keeper) packet(to *host, b mad.MAD) mad.Packet {
	return mad.Packet{GRH: mad.GRH{HopLimit: 1, SGID: gid(k.plan.Self.GUID), DGID: gid(to.GUID)}, MAD: b}
}

// manage gives a host's agent the key fields that the settings have for it. It fails with ErrNoAgent, election.ErrPortRefused, ctx's error, and where
// the key can't be recorded.
func (k *keeper) manage(ctx context.Context, h *host) error {
	s := k.settings.Load()
	want := agent.Configured(s, h.GUID)
	setting := election.NewKeySetting(h.GUID, k.candidates(h.GUID), want)
	for {
		smp, ok := setting.Next()
		if !ok {
			break
		}
		number := smp.TransactionID // it has numbers of its own
		got, err := k.call.askTimes(ctx, h.port, k.packet(h, smp.MAD()), agentAsks)
		switch {
		case errors.Is(err, ErrSilence):
			setting.Silent()
			continue
		case err != nil:
			return err
		}
		answer, err := mad.ParseSMP(&got)
		if err != nil || answer.Method != mad.MethodGetResp || answer.Attribute != mad.AttrPortInfo {
			setting.Silent() // it is no answer, and who gives such ones is not asked without end
			continue
		}
		answer.TransactionID = number
		setting.Answer(&answer)
	}
	switch _, err := setting.Done(); {
	case errors.Is(err, election.ErrPortLocked):
		return ErrNoAgent
	case err != nil:
		return err
	}
	return k.recordKey(h.GUID, want.MKey)
}

// drain has a host take no new streams, or take them again. It fails as manage does, and with errNoHost.
func (k *keeper) drain(ctx context.Context, guid mad.GUID, on bool) error {
	h, err := k.hostOf(guid)
	if err != nil {
		return err
	}
	info, key, err := k.open(ctx, h)
	if err != nil {
		return err
	}
	info.State = mad.PortActive
	if on {
		info.State = mad.PortArmed
	}
	_, err = k.askPortInfo(ctx, h, mad.MethodSet, key, &info)
	return err
}

// Drain has a host of the fabric take no new streams, or take them again. It fails with ErrNoFabric, ErrNotMaster, ErrNoAgent, a *StatusError, and
// where the host has no stream with this one.
func (d *Directory) Drain(ctx context.Context, guid mad.GUID, on bool) error {
	k, err := d.asMaster()
	if err != nil {
		return err
	}
	return k.drain(ctx, guid, on)
}

// SetPartitions has a host of the fabric be in these partitions of its configuration alone, by P_Keys with the bit of full members. It fails as Drain does;
// a host's agent refuses partitions that its configuration does not have.
func (d *Directory) SetPartitions(ctx context.Context, guid mad.GUID, keys []uint16) error {
	k, err := d.asMaster()
	if err != nil {
		return err
	}
	return k.setPartitions(ctx, guid, keys)
}

func (k *keeper) setPartitions(ctx context.Context, guid mad.GUID, keys []uint16) error {
	h, err := k.hostOf(guid)
	if err != nil {
		return err
	}
	_, key, err := k.open(ctx, h)
	if err != nil {
		return err
	}
	node, err := k.askAgent(ctx, h, mad.SMP{Header: smpHeader(mad.MethodGet, mad.AttrNodeInfo, 0), MKey: key}, asks)
	if err != nil {
		return err
	}
	info, err := mad.ParseNodeInfo(node.Data[:mad.NodeInfoLen])
	if err != nil {
		return err
	}
	if len(keys) > int(info.PartitionCap) {
		return fmt.Errorf("the host has room for %d partitions, not for %d", info.PartitionCap, len(keys))
	}
	for block := range (int(info.PartitionCap) + mad.PKeysPerBlock - 1) / mad.PKeysPerBlock {
		var table mad.PKeyTable
		copy(table.PKeys[:], keys[min(len(keys), block*mad.PKeysPerBlock):])
		smp := mad.SMP{Header: smpHeader(mad.MethodSet, mad.AttrPKeyTable, uint32(block)), MKey: key}
		copy(smp.Data[:], table.Append(nil))
		if _, err := k.askAgent(ctx, h, smp, asks); err != nil {
			return err
		}
	}
	return nil
}

// asMaster is this host's directory, if that is the fabric's. It fails with ErrNoFabric and ErrNotMaster.
func (d *Directory) asMaster() (*keeper, error) {
	m, k := d.roles()
	if m == nil {
		return nil, ErrNoFabric
	}
	if k == nil || !d.manages().isMaster() {
		return nil, ErrNotMaster
	}
	return k, nil
}

// Rotate makes new keys in this manager's files, and returns these. They hold once the host's configuration is read again; then GiveKeys gives the
// hosts theirs. It fails with ErrNotMaster for an m_key, and with conf.ErrKey and the file system's error where a file can't be written.
func (d *Directory) Rotate(names []conf.KeyName) (files []string, err error) {
	settings := d.Settings()
	for _, name := range names {
		if _, used := settings.KeyFiles[name]; name == conf.MKey && used {
			err = d.rotateMKey()
		} else {
			err = settings.WriteKey(name, conf.NewKey())
		}
		if err != nil {
			return files, err
		}
		files = append(files, settings.KeyPath(name))
	}
	return files, nil
}

func (d *Directory) rotateMKey() error {
	k, err := d.asMaster()
	if err != nil {
		return err
	}
	k.managing.Lock()
	defer k.managing.Unlock()
	ports := k.guids()
	k.keysMu.Lock()
	defer k.keysMu.Unlock()
	settings := k.settings.Load()
	if err := settings.RotateMKey(k.portKeys, ports); err != nil {
		return err
	}
	k.rotated = settings // these settings have the old key, which no host is to be given again
	return nil
}

// guids are those of the hosts that have a stream with this manager.
func (k *keeper) guids() (all []mad.GUID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for guid, h := range k.hosts {
		if h.link != nil {
			all = append(all, guid)
		}
	}
	return all
}

// Hosts are those that have a stream with this host's directory.
func (d *Directory) Hosts() []mad.GUID {
	if _, k := d.roles(); k != nil {
		return k.guids()
	}
	return nil
}

// GiveKeys gives hosts their key, for which it waits a while: the streams of those that are away may come back. It returns which have theirs, and why
// others have not. It fails with ErrNotMaster.
func (d *Directory) GiveKeys(ctx context.Context, hosts []mad.GUID) (done []mad.GUID, missed map[mad.GUID]error, err error) {
	ctx, cancel := context.WithTimeout(ctx, returnTime)
	defer cancel()
	for range rate.Ticks(ctx, returnLook) {
		there := d.Hosts()
		if d.manages().isMaster() && !slices.ContainsFunc(hosts, func(g mad.GUID) bool { return !slices.Contains(there, g) }) {
			break
		}
	}
	k, err := d.asMaster()
	if err != nil {
		return nil, nil, err
	}
	k.managing.Lock()
	defer k.managing.Unlock()
	missed = k.eachHost(context.WithoutCancel(ctx), k.manage)
	there := k.guids()
	for _, g := range hosts {
		switch {
		case !slices.Contains(there, g):
			missed[g] = errNoHost
		case missed[g] == nil:
			done = append(done, g)
		}
	}
	return done, missed, nil
}
