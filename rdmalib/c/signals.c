// What the engine's runtime, which is Go's, means for a program's signals. Its threads take none of them: they begin with
// all blocked. (All but SIGCHLD and SIGPROF, which that runtime lets through.) Handlers that it puts in place of the program's when it is loaded are taken out again where it can do
// without them. And as handlers may run while a thread of the program is in the engine, on a stack that is too small for
// them, they get SA_ONSTACK, for a stack that the runtime gives such threads: those there are when it is loaded by the
// runtime, and later ones here.
#include "lib.h"
#include <dlfcn.h>
#include <signal.h>

static int (*next_action)(int, const struct sigaction *, struct sigaction *);
static sighandler_t (*next_signal)(int, sighandler_t), (*next_sysv)(int, sighandler_t), (*next_sigset)(int, sighandler_t);
static int loaded; // the engine is
int late; // this library was loaded so late that the program's calls of the functions below don't come here

// next is the C library's function, which stands before this library where a program comes by it through another (late).
static void *next(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);
	return f ? f : dlsym(RTLD_DEFAULT, name);
}

__attribute__((constructor)) static void find(void)
{
	*(void **)&next_action = next("sigaction");
	*(void **)&next_signal = next("signal");
	*(void **)&next_sysv = next("__sysv_signal");
	*(void **)&next_sigset = next("sigset");
}

static int needs(const struct sigaction *a)
{
	return __atomic_load_n(&loaded, __ATOMIC_ACQUIRE) && !(a->sa_flags & SA_ONSTACK) && a->sa_handler != SIG_DFL && a->sa_handler != SIG_IGN;
}

static int with_stack(int sig, const struct sigaction *a, struct sigaction *old)
{
	struct sigaction on;
	if (!next_action)
		find(); // a constructor of another library's
	if (a && needs(a)) {
		on = *a;
		on.sa_flags |= SA_ONSTACK;
		a = &on;
	}
	return next_action(sig, a, old);
}

PUBLIC int sigaction(int sig, const struct sigaction *a, struct sigaction *old) { return with_stack(sig, a, old); }

static sighandler_t set(sighandler_t (**next)(int, sighandler_t), int sig, sighandler_t f)
{
	struct sigaction a;
	if (!*next)
		find();
	sighandler_t old = (*next)(sig, f);
	if (old != SIG_ERR && !next_action(sig, NULL, &a) && needs(&a)) {
		a.sa_flags |= SA_ONSTACK;
		next_action(sig, &a, NULL);
	}
	return old;
}

PUBLIC sighandler_t signal(int sig, sighandler_t f) { return set(&next_signal, sig, f); }
PUBLIC sighandler_t __sysv_signal(int sig, sighandler_t f) { return set(&next_sysv, sig, f); }
PUBLIC sighandler_t sigset(int sig, sighandler_t f) { return set(&next_sigset, sig, f); }

// give_stacks does for handlers what sigaction does, where it is not called.
void give_stacks(void)
{
	struct sigaction a;
	for (int sig = 1; sig < NSIG; sig++)
		if (!next_action(sig, NULL, &a) && needs(&a)) {
			a.sa_flags |= SA_ONSTACK;
			next_action(sig, &a, NULL);
		}
}

void hold_signals(sigset_t *was)
{
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, was);
}

void release_signals(const sigset_t *was) { pthread_sigmask(SIG_SETMASK, was, NULL); }

// The engine's sockets do without SIGPIPE, and its threads are not interrupted by SIGURG (internal/tools/rdmalib).
static const int not_needed[] = { SIGPIPE, SIGURG };
enum { NOT_NEEDED = sizeof not_needed / sizeof *not_needed };

void *load_quietly(const char *path)
{
	sigset_t mask;
	struct sigaction was[NOT_NEEDED];
	hold_signals(&mask);
	Dl_info it = {}, self = {};
	late = !dladdr(dlsym(RTLD_DEFAULT, "sigaction"), &it) || !dladdr((void *)with_stack, &self) || it.dli_fbase != self.dli_fbase;
	for (int i = 0; i < NOT_NEEDED; i++)
		next_action(not_needed[i], NULL, &was[i]);
	__atomic_store_n(&loaded, 1, __ATOMIC_RELEASE); // from now on handlers are changed here, or by the runtime
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	for (int i = 0; i < NOT_NEEDED; i++)
		with_stack(not_needed[i], &was[i], NULL);
	release_signals(&mask);
	return lib;
}
