// Package simulation runs a server with a disk, and clients that write and read it over
// several paths, in one process and in time that passes when nobody has anything to do
// (testing/synctest). A number, the seed, draws everything: how many clients, paths and
// connections there are, what the clients ask for and when, how long each message and each
// I/O takes, and what goes wrong. A run of a minute takes some 6 ms.
//
// What runs is the product: rnbd, rtrs, verbs, rdmap, ddp, mpa, and nbd in front of a third
// of the clients. Below it are an in-memory network (verbstest) whose links are cut, swallow
// what is sent, are without their security association, refuse, and take different times, so
// that paths overtake one another (TestSeedsSCTP has some of the paths, in one session with
// the others, run over SCTP: by the product's ddp/sctpadapt and transport/sctp, whose packets
// are lost, doubled, damaged, too long, overtake one another, and for a while get through in one
// direction or in none); and a disk in memory with a volatile cache. The server's
// process is killed, its host loses its power and comes back, with or without a word; clients
// are killed, isolated until another takes their place, and lose and get paths; storage is
// slow, fails, writes short, and is opened again under its users; disks are detached in use.
// An NBD client hangs up with requests under way, and another takes its place beside a third.
// In a third of the runs I/O fails when there has been no path for a while. Meanwhile the
// server's administrator fences clients, and makes the disk longer.
//
// The disk knows what it has executed, and when. After each run:
//
//   - A write was executed at most once, or, if it was the only writer's and the server has
//     forgotten the session in between, again in its place; by the time that it was
//     acknowledged; and never after it was answered, unless it failed because there was no path:
//     then not after a later write to the same sector was acknowledged.
//   - Nor after the client's next process, or, where one may write, another client had the
//     disk for writing.
//   - Nor, if the NBD client was gone that had sent it, after anything was acknowledged that
//     another asked for since; where I/O fails without a path, a write to the same sector.
//   - Nor after the client was fenced, until it has attached the disk anew.
//   - The disk never shrinks for who has it attached, nor from one attachment to the next.
//   - A read has returned what each sector had at some time of the read, and a block status
//     whether anything had been written there.
//   - What a power cut took was not written with FUA, and no flush has vouched for it,
//     before or after.
//   - What failed has a cause, everything ends, and the disk can be read at the end.
//
// # How far a seed repeats a run
//
// All random numbers are of the seed, those of crypto/rand too, each link and each purpose
// with its own sequence, time is the bubble's, and the tests run on one processor: the runs of
// a seed have the same events at the same times (TestSeedRepeatsItsRun). With two processors
// most do not, because it is chance then which of two goroutines goes first that can run at the
// same moment; nor do some where other programs take the processor away, or where several
// timers are due at one moment, of which synctest draws the first. Another machine, another
// version of Go, the race detector, or a change of the product make it another run.
//
// What is drawn for SCTP has sequences of its own: a seed without it draws what it drew
// before, and the seeds of the two tests are kept apart.
package simulation
