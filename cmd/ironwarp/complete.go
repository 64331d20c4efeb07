package main

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/profile"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/urfave/cli/v2"
)

// The shells' scripts run the command with the words before the cursor and this flag
// as the last word, and put the word under the cursor into this variable.
const (
	completeFlag = "--generate-bash-completion"
	completeVar  = "IRONWARP_COMPLETE"
)

// values of flags that are one of a few words.
var values = map[string][]string{
	"transport":  {"tcp", "sctp", "sctp-udp", "auto"},
	"profile":    profile.Names(),
	"auth":       {"psk", "cert"},
	"revocation": {"strict", "ifuri", "relaxed"},
	"mode":       {"tunnel", "transport"},
	"protection": {"ipsec", "loopback"},
	"crc":        {"on", "off"},
	"fpdu":       {"large", "emss"},
	"policy":     rtrs.Policies(),
	"no-path":    config.NoPaths(),
	"trust":      config.Trusts(),
	"log-level":  {"debug", "info", "warn", "error"},
}

// completeValue completes the value of a flag, and reports whether that was asked
// for. If it knows none it prints nothing, and the shell offers files.
func (w *ironwarp) completeValue(app *cli.App, words []string) bool {
	n := len(words)
	if n < 3 || words[n-1] != completeFlag || !isFlag(words[n-2]) || isFlag(os.Getenv(completeVar)) {
		return false
	}
	commands, flags := app.Commands, app.Flags
	for _, word := range words[1 : n-2] {
		if c := commandOf(commands, word); c != nil {
			commands, flags = c.Subcommands, c.Flags
		}
	}
	f := flagOf(flags, words[n-2])
	if f == nil || !takesValue(f) {
		return false
	}
	for _, v := range values[f.Names()[0]] {
		w.printf("%s\n", v)
	}
	return true
}

// complete prints the command's flags where one was begun, else candidates that
// the daemon knows, and nothing if it does not answer at once.
func (w *ironwarp) complete(c *cli.Context, list func(context.Context, *api.Client) []string) {
	if n := len(os.Args); n > 2 && strings.HasPrefix(os.Args[n-2], "-") {
		cli.DefaultCompleteWithFlags(c.Command)(c)
		return
	}
	ctx, cancel := context.WithTimeout(c.Context, time.Second)
	defer cancel()
	for _, name := range list(ctx, w.client(c)) {
		w.printf("%s\n", name)
	}
}

func (w *ironwarp) completePeers(c *cli.Context) {
	w.complete(c, names((*api.Client).Peers, func(p api.Peer) string { return p.Name }))
}

func (w *ironwarp) completeKeys(c *cli.Context) {
	w.complete(c, func(context.Context, *api.Client) []string { return []string{"m_key", "sm_key", "sa_key"} })
}

func (w *ironwarp) completeExports(c *cli.Context) {
	w.complete(c, names((*api.Client).Exports, func(e api.Export) string { return e.Name }))
}

func (w *ironwarp) completeTargets(c *cli.Context) {
	w.complete(c, names((*api.Client).Targets, func(t api.Target) string { return t.Name }))
}

func (w *ironwarp) completeULPs(c *cli.Context) {
	w.complete(c, names((*api.Client).ULPs, func(u api.ULP) string { return u.Name }))
}

func (w *ironwarp) completePartitions(c *cli.Context) {
	w.complete(c, names((*api.Client).Partitions, func(p api.Partition) string { return p.Name }))
}

func (w *ironwarp) completeAttachments(c *cli.Context) {
	w.complete(c, names((*api.Client).Attachments, api.Attachment.Name))
}

// names lists what the daemon has of a kind.
func names[T any](list func(*api.Client, context.Context) ([]T, error), name func(T) string) func(context.Context, *api.Client) []string {
	return func(ctx context.Context, cl *api.Client) (all []string) {
		things, _ := list(cl, ctx)
		for _, t := range things {
			all = append(all, name(t))
		}
		return all
	}
}

// completeOffers completes PEER/EXPORT: first the peer, then what it offers.
func (w *ironwarp) completeOffers(c *cli.Context) {
	w.complete(c, func(ctx context.Context, cl *api.Client) (names []string) {
		if peer, _, begun := strings.Cut(os.Getenv(completeVar), "/"); begun {
			offers, _ := cl.Offers(ctx, peer)
			for _, o := range offers {
				if config.CheckExportName(o.Name) == nil { // it can be attached
					names = append(names, peer+"/"+o.Name)
				}
			}
			return names
		}
		peers, _ := cl.Peers(ctx)
		for _, p := range peers {
			names = append(names, p.Name+"/")
		}
		return names
	})
}
