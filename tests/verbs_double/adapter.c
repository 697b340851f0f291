/* SPDX-License-Identifier: MIT */
/* The adapter of this process, those of others, the locks in them, and the copying from one process's memory to another's. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>

#include "double.h"
#include "ringbuf/sys.h"

enum { PLACE_MAX = 16384, HIDDEN_MAX = 2 * PLACE_MAX };

struct adapter *own;

/* In a page that a fork wipes: a child has no adapter. */
static struct {
	int pid;
} *mine;

static struct ibv_device device = {
	.node_type = IBV_NODE_CA,
	.transport_type = IBV_TRANSPORT_IB,
	.name = "double0",
	.dev_name = "uverbs0",
};
static struct ibv_context context;
static struct far_adapter *fars;
static struct far_adapter self;
static struct double_lock fars_lock;
static _Atomic uint64_t hidden[HIDDEN_MAX / 64];

static void *shared(int fd)
{
	long at = sys_mmap(NULL, sizeof(struct adapter), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

	return sys_failed(at) ? NULL : (void *)at;
}

static bool make(void)
{
	int fd = sys_memfd_create("verbs-double", MFD_CLOEXEC);
	struct adapter *a = NULL;

	if (fd < 0)
		return false;
	if (sys_ftruncate(fd, sizeof(struct adapter)) == 0)
		a = shared(fd);
	if (!a || sys_getrandom(&a->nonce, sizeof(a->nonce), 0) != sizeof(a->nonce)) {
		sys_close(fd);
		return false;
	}
	a->magic = ADAPTER_MAGIC;
	a->bytes = sizeof(*a);
	device.transport_type = settings.iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
	context = (struct ibv_context){ .device = &device, .cmd_fd = fd, .num_comp_vectors = 1 };
	context.async_fd = (int)sys_call2(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
	context.ops.post_send = qp_post_send;
	context.ops.post_recv = qp_post_recv;
	context.ops.poll_cq = cq_poll;
	context.ops.req_notify_cq = cq_arm;
	own = a;
	self = (struct far_adapter){ .memory = a, .pid = mine->pid };
	fars = NULL;
	store_relaxed(&fars_lock.holder, 0);
	/* Where a security module asks for it: peers may reach our memory. */
	(void)sys_call5(SYS_prctl, PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	return true;
}

/* One thread at a time makes what a process has once. Let go of in a forked child. */
static _Atomic uint32_t making;

static void making_begin(void)
{
	while (exchange(&making, 1))
		(void)sys_call0(SYS_sched_yield);
}

void adapter_anew(uint64_t *of, void (*make_anew)(void))
{
	making_begin();
	if (*of != own->nonce) {
		*of = own->nonce;
		make_anew();
	}
	store_release(&making, 0);
}

static bool open_locked(void)
{
	if (!mine) {
		long at = sys_mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (sys_failed(at))
			return false;
		mine = (void *)at;
		(void)sys_madvise(mine, 4096, MADV_WIPEONFORK);
	}
	if (!mine->pid) {
		mine->pid = sys_getpid();
		settings_read();
		own = NULL;
	}
	if (settings.no_device) {
		errno = ENODEV;
		return false;
	}
	if (own || make())
		return true;
	errno = ENOMEM;
	return false;
}

bool adapter_open(void)
{
	bool there;

	making_begin();
	there = open_locked();
	store_release(&making, 0);
	return there;
}

int adapter_fd(void)
{
	return context.cmd_fd;
}

struct ibv_context *adapter_context(void)
{
	return &context;
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* ---- locks ---- */

bool process_is_dead(int pid)
{
	uint8_t byte;
	struct iovec to = { &byte, 1 }, from = { NULL, 1 };

	return sys_call6(SYS_process_vm_readv, pid, (long)&to, 1, (long)&from, 1, 0) == -ESRCH;
}

bool lock_try(struct double_lock *lock)
{
	uint32_t nobody = 0;

	return compare_exchange(&lock->holder, &nobody, (uint32_t)mine->pid);
}

void lock_take(struct double_lock *lock)
{
	const struct timespec moment = { .tv_nsec = 50000 };
	unsigned turns = 0;

	while (!lock_try(lock)) {
		uint32_t holder = load_relaxed(&lock->holder);

		if (++turns < 100)
			cpu_relax();
		else if (turns < 1000)
			(void)sys_call0(SYS_sched_yield);
		else
			(void)sys_nanosleep(&moment);
		if (turns % 1000 == 0 && holder && process_is_dead((int)holder) &&
		    compare_exchange(&lock->holder, &holder, (uint32_t)mine->pid))
			return;
	}
}

void lock_drop(struct double_lock *lock)
{
	exchange(&lock->holder, 0);
}

/* ---- other processes' adapters ---- */

struct far_adapter *far_open(int fd, int pid)
{
	struct far_adapter *far = NULL;
	struct adapter *a;
	struct stat st;

	if (pid == mine->pid) {
		sys_close(fd);
		return &self;
	}
	a = sys_fstat(fd, &st) == 0 && st.st_size == sizeof(struct adapter) ? shared(fd) : NULL;
	sys_close(fd);
	if (!a)
		return NULL;
	lock_take(&fars_lock);
	for (far = fars; far && far->memory->nonce != a->nonce; far = far->next)
		;
	if (!far && a->magic == ADAPTER_MAGIC && a->bytes == sizeof(*a)) {
		far = calloc(1, sizeof(*far));
		if (far) {
			*far = (struct far_adapter){ .memory = a, .pid = pid, .next = fars };
			fars = far;
			a = NULL;
		}
	}
	if (far)
		far->users++;
	lock_drop(&fars_lock);
	if (a)
		sys_munmap(a, sizeof(*a));
	return far;
}

void far_close(struct far_adapter *far)
{
	struct far_adapter **at = &fars;

	if (far == &self)
		return;
	lock_take(&fars_lock);
	if (!--far->users) {
		while (*at != far)
			at = &(*at)->next;
		*at = far->next;
		sys_munmap(far->memory, sizeof(*far->memory));
		free(far);
	}
	lock_drop(&fars_lock);
}

/* A word that another process changes is read as a whole: twice, until both are the same. */
static int read_word(int pid, uint64_t from, uint64_t *word)
{
	struct iovec here = { word, sizeof(*word) }, there = { (void *)(uintptr_t)from, sizeof(*word) };
	uint64_t before;
	bool again = false;

	do {
		before = *word;
		long n = sys_call6(SYS_process_vm_readv, pid, (long)&here, 1, (long)&there, 1, 0);

		if (n != sizeof(*word))
			return n < 0 ? (int)n : -EFAULT;
		if (again && before == *word)
			return 0;
		again = true;
	} while (true);
}

int copy_memory(int to_pid, uint64_t to, int from_pid, uint64_t from, uint64_t length)
{
	int call = from_pid ? SYS_process_vm_readv : SYS_process_vm_writev;
	int pid = from_pid ? from_pid : to_pid ? to_pid : mine->pid;

	if (from_pid && length == sizeof(uint64_t) && from % length == 0 && to % length == 0) {
		uint64_t word = 0;
		int r = read_word(from_pid, from, &word);

		if (!r)
			*(volatile uint64_t *)(uintptr_t)to = word;
		return r;
	}
	while (length) {
		struct iovec here = { (void *)(uintptr_t)(from_pid ? to : from), length };
		struct iovec there = { (void *)(uintptr_t)(from_pid ? from : to), length };
		long n = sys_call6(call, pid, (long)&here, 1, (long)&there, 1, 0);

		if (n <= 0)
			return n == 0 ? -EFAULT : (int)n;
		to += (uint64_t)n;
		from += (uint64_t)n;
		length -= (uint64_t)n;
	}
	return 0;
}

/* ---- descriptors ---- */

/* High in the range that the program has, so that the low numbers are the program's. The limit itself is left alone: others may be moving it. */
int hide_fd(int fd)
{
	struct rlimit64 limit = { 0, 0 };
	int high;

	if (fd < 0)
		return fd;
	(void)sys_prlimit(0, RLIMIT_NOFILE, NULL, &limit);
	if (limit.rlim_cur > PLACE_MAX)
		limit.rlim_cur = PLACE_MAX;
	high = (int)sys_fcntl(fd, F_DUPFD_CLOEXEC, (long)(limit.rlim_cur - limit.rlim_cur / 4));
	if (high < 0 || high >= HIDDEN_MAX) {
		if (high >= 0)
			sys_close(high);
		return fd;
	}
	sys_close(fd);
	fetch_or(&hidden[high / 64], UINT64_C(1) << high % 64);
	return high;
}

void close_hidden(int fd)
{
	if (fd >= 0 && fd < HIDDEN_MAX)
		fetch_and(&hidden[fd / 64], ~(UINT64_C(1) << fd % 64));
	if (fd >= 0)
		sys_close(fd);
}

/* What is told by the end of a wire must not wait for the end of every child. */
static void close_in_child(void)
{
	store_release(&making, 0);
	for (int word = 0; word < HIDDEN_MAX / 64; word++) {
		uint64_t bits;

		while ((bits = load_relaxed(&hidden[word])))
			close_hidden(word * 64 + __builtin_ctzll(bits));
	}
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, close_in_child);
}
