/* SPDX-License-Identifier: MIT */
/* Pointers at which there is nothing: the kernel says EFAULT, whoever the descriptor belongs to, and the program goes on. */
#include "probe.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

/* The compiler is not to know what they are. */
static void *volatile nowhere;
static volatile int minus_one = -1;

#define TRY(what) SAY("%s: " #what " %s\n", whose, outcome(what))

static void data_calls(const char *whose, int a, int b)
{
	char bytes[16] = "0123456789abcde";
	struct iovec good = { bytes, 4 }, bad[2] = { { bytes, 4 }, { nowhere, 4 } };
	struct msghdr no_vector = { .msg_iov = nowhere, .msg_iovlen = 1 }, into_nothing = { .msg_iov = bad + 1, .msg_iovlen = 1 };
	struct mmsghdr two[2] = { { .msg_hdr = { .msg_iov = &good, .msg_iovlen = 1 } }, { .msg_hdr = no_vector } };

	TRY(write(a, nowhere, 4));
	TRY(writev(a, nowhere, 2));
	TRY(writev(a, bad + 1, 1));
	TRY(writev(a, nowhere, 0));
	TRY(pwritev2(a, nowhere, 1, -1, 0));
	TRY(readv(b, nowhere, 1));
	TRY(preadv2(b, nowhere, 1, -1, 0));
	TRY(send(a, nowhere, 4, 0));
	TRY(sendto(a, bytes, 4, 0, nowhere, 16));
	TRY(sendto(a, bytes, 4, 0, (struct sockaddr *)bytes, 4000));
	TRY(sendmsg(a, nowhere, 0));
	TRY(sendmsg(a, &no_vector, 0));
	TRY(sendmsg(a, &into_nothing, 0));
	TRY(recvmsg(b, nowhere, MSG_DONTWAIT));
	TRY(recvmsg(b, &no_vector, MSG_DONTWAIT));
	TRY(sendmmsg(a, nowhere, 2, 0));
	TRY(sendmmsg(a, two, 2, 0));
	TRY(recvmmsg(b, nowhere, 2, MSG_DONTWAIT, NULL));
	TRY(recvmmsg(b, two, 1, MSG_DONTWAIT, nowhere));
	TRY(sendfile(a, b, nowhere, 4));
	TRY(syscall(SYS_writev, a, nowhere, 2));
}

/* Bytes have come; what is wrong is told when they are taken. */
static void places_for_addresses(const char *whose, int a, int b)
{
	char bytes[64];
	struct sockaddr_in addr;
	socklen_t negative = (socklen_t)-1;

	for (int i = 0; i < 3; i++)
		MUST(send(a, "word", 4, 0) == 4);
	TRY(recvfrom(b, bytes, 4, 0, (struct sockaddr *)&addr, nowhere));
	TRY(recvfrom(b, bytes, 4, 0, (struct sockaddr *)&addr, &negative));
	TRY(recvfrom(b, bytes, 4, MSG_WAITALL, nowhere, NULL));
	TRY(recv(b, bytes, sizeof(bytes), MSG_DONTWAIT));
}

static void options(const char *whose, int fd)
{
	int len = 4;

	TRY(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, nowhere, sizeof(int)));
	TRY(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, nowhere, sizeof(struct timeval)));
	TRY(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, nowhere, sizeof(int)));
	TRY(getsockopt(fd, SOL_SOCKET, SO_ERROR, nowhere, nowhere));
	TRY(getsockopt(fd, SOL_SOCKET, SO_ERROR, nowhere, (socklen_t *)&len));
	TRY(ioctl(fd, FIONREAD, nowhere));
	TRY(ioctl(fd, SIOCOUTQ, nowhere));
	TRY(ioctl(fd, FIONBIO, nowhere));
	TRY(ioctl(fd, FIOASYNC, nowhere));
}

static void waits(const char *whose, int fd)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };
	struct timespec none = { 0, 0 };
	struct timeval no_time = { 0, 0 };
	fd_set set;
	int ep = epoll_create1(EPOLL_CLOEXEC);

	MUST(ep >= 0);
	FD_ZERO(&set);
	FD_SET(fd, &set);
	TRY(poll(nowhere, 1, 0));
	TRY(poll(nowhere, 0, 0));
	TRY(syscall(SYS_ppoll, &one, 1, nowhere, NULL, 8));
	TRY(ppoll(&one, 1, &none, nowhere));
	TRY(select(fd + 1, nowhere, NULL, NULL, &no_time));
	TRY(select(fd + 1, NULL, nowhere, NULL, &no_time));
	TRY(select(fd + 1, NULL, &set, nowhere, &no_time));

	TRY(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, nowhere, NULL));
	TRY(syscall(SYS_ppoll, &one, 1, &none, nowhere, 8));
	TRY(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, &none, nowhere));
	TRY(epoll_ctl(ep, EPOLL_CTL_ADD, fd, nowhere));
	TRY(epoll_ctl(ep, EPOLL_CTL_MOD, fd, NULL));
	TRY(epoll_ctl(ep, EPOLL_CTL_DEL, fd, nowhere));
	TRY(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &(struct epoll_event){ .events = EPOLLOUT }));
	TRY(epoll_wait(ep, nowhere, 1, 1000));
	close(ep);
}

/* The last `bytes` of a page behind which there is nothing. */
static void *at_the_edge(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *at = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	MUST(at != MAP_FAILED && munmap(at + page, page) == 0);
	return at + page - bytes;
}

/* More than there may be: refused before any of them is looked at, by which the array would be found to be short. */
static void counts(const char *whose, int a, int b)
{
	struct pollfd *polled = at_the_edge(sizeof(*polled));
	struct iovec *vector = at_the_edge(sizeof(*vector));
	struct epoll_event *event = at_the_edge(sizeof(*event));
	struct msghdr m = { .msg_iov = vector, .msg_iovlen = IOV_MAX + 1 };
	struct rlimit limit, low;
	struct timespec none = { 0, 0 };
	struct timeval no_time = { 0, 0 };
	fd_set *set = at_the_edge(sizeof(*set));
	nfds_t over;
	int ep = epoll_create1(EPOLL_CLOEXEC);

	*polled = (struct pollfd){ .fd = b, .events = POLLIN };
	*vector = (struct iovec){ .iov_base = "word", .iov_len = 4 };
	MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	over = limit.rlim_cur + 1;
	TRY(poll(polled, over, 0));
	TRY(ppoll(polled, over, &none, NULL));
	TRY(poll(polled, (nfds_t)1 << 40, 0));
	low = (struct rlimit){ 64, limit.rlim_max };
	MUST(setrlimit(RLIMIT_NOFILE, &low) == 0);
	TRY(poll(polled, 65, 0));
	TRY(ppoll(polled, 65, &none, NULL));
	TRY(poll(polled, 1, 0));
	MUST(syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, NULL) == 0);
	{
		struct pollfd many[65] = { [64] = { .fd = b, .events = POLLIN } };

		MUST(send(a, "word", 4, 0) == 4 || write(a, "word", 4) == 4);
		for (int i = 0; i < 64; i++)
			many[i].fd = -1;
		TRY(poll(many, 65, 10000));
	}
	MUST(epoll_ctl(ep, EPOLL_CTL_ADD, b, &(struct epoll_event){ .events = EPOLLIN }) == 0);
	TRY(epoll_wait(ep, event, INT_MAX, 0));
	TRY(epoll_pwait(ep, event, INT_MAX / (int)sizeof(*event) + 1, 0, NULL));
	/* Here the kernel looks at as many as its table of the process is long. */
	memset(set, 0, sizeof(*set));
	FD_SET(b, set);
	TRY(select(200000, set, NULL, NULL, &no_time));
	TRY(pselect(200000, NULL, set, NULL, &none, NULL));
	TRY(readv(b, vector, IOV_MAX + 1));
	TRY(writev(a, vector, IOV_MAX + 1));
	TRY(writev(a, vector, minus_one));
	TRY(sendmsg(a, &m, 0));
	TRY(recvmsg(b, &m, MSG_DONTWAIT));
	MUST(read(b, (char[4]){ 0 }, 4) == 4);
	close(ep);
}

static void connections(void)
{
	const char *whose = "none";
	int fd = socket(AF_INET, SOCK_STREAM, 0), listener = socket(AF_INET, SOCK_STREAM, 0), other = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);

	TRY(connect(fd, nowhere, sizeof(addr)));
	MUST(bind(listener, (struct sockaddr *)&addr, len) == 0 && listen(listener, 1) == 0);
	MUST(getsockname(listener, (struct sockaddr *)&addr, &len) == 0);
	MUST(connect(other, (struct sockaddr *)&addr, len) == 0);
	TRY(accept(listener, nowhere, nowhere));
	TRY(close(fd) | close(listener) | close(other));
}

static void all(const char *whose, int a, int b)
{
	data_calls(whose, a, b);
	options(whose, a);
	waits(whose, a);
	counts(whose, a, b);
}

int main(int argc, char **argv)
{
	int a, b, ends[2];

	nowhere = strcmp(argv[1], "low") == 0 ? (void *)0x10 : (void *)(~0ul << 48);
	alarm(20);
	signal(SIGPIPE, SIG_IGN);
	MUST(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	all("pipe", ends[1], ends[0]);
	connections();
	a = tcp_pair(&b);
	MUST(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)) == 0);
	all("young", a, b);
	while (recv(b, (char[64]){ 0 }, 64, MSG_DONTWAIT) > 0)
		;
	ping_pong(a, b, 40);
	all("busy", a, b);
	while (recv(b, (char[64]){ 0 }, 64, MSG_DONTWAIT) > 0)
		;
	places_for_addresses("busy", a, b);
	ping_pong(a, b, 20);
	return 0;
}
