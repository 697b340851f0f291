/* SPDX-License-Identifier: MIT */
/* See pipe_io.h. */
#include "shim/pipe_io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include "ringbuf/sys.h"
#include "shim/asleep.h"
#include "shim/counted.h"
#include "shim/own_fd.h"

#define OWN_PIPE_BYTES 65536

int pipe_check(int pipe_fd)
{
	long r = sys_fcntl(pipe_fd, F_GETPIPE_SZ, 0);

	return r == -EBADF ? -EBADF : r < 0 ? -EINVAL : 0;
}

int pipe_await(int pipe_fd, short event, bool block, uint64_t *handled)
{
	struct pollfd p = { .fd = pipe_fd, .events = event };
	int r;

	if (!block)
		return sys_ready_now(pipe_fd, event) ? 0 : -EAGAIN;
	do
		r = asleep_in_poll(&p, 1, -1, NULL, *handled);
	while (r == -EINTR && counted_interrupted(handled, false) == COUNTED_RESTARTS);
	return r > 0 ? 0 : r;
}

bool pipe_never_blocks(int pipe_fd, unsigned flags)
{
	return flags & SPLICE_F_NONBLOCK || sys_fcntl(pipe_fd, F_GETFL, 0) & O_NONBLOCK;
}

/* A pipe of our own, out of the program's sight. */
static int own_pipe(int ends[2])
{
	int r = (int)sys_call2(SYS_pipe2, ends, O_CLOEXEC | O_NONBLOCK);

	if (r < 0)
		return r;
	for (int i = 0; i < 2; i++)
		ends[i] = own_fd_adopt(ends[i], NULL);
	if (ends[0] >= 0 && ends[1] >= 0)
		return 0;
	own_fd_close(ends[0]);
	own_fd_close(ends[1]);
	return -EMFILE;
}

/*
 * Kernels before 6.4 refuse RWF_NOWAIT on a pipe, but never sleep when they splice from one pipe to another and are told
 * not to; and a pipe of our own is nobody else's to empty or fill. Without descriptors for one the pipe is asked how much it holds,
 * which another reader could still take away.
 */
static ssize_t read_pipe_by_own(int pipe_fd, uint8_t *to, size_t len)
{
	int ends[2], waiting = 0;
	ssize_t n, done = 0;

	if (pipe_never_blocks(pipe_fd, 0))
		return sys_read(pipe_fd, to, len);
	if (own_pipe(ends) < 0) {
		n = sys_call3(SYS_ioctl, pipe_fd, FIONREAD, &waiting);
		return n < 0 ? n : waiting > 0 ? sys_read(pipe_fd, to, len < (size_t)waiting ? len : (size_t)waiting) : -EAGAIN;
	}
	n = sys_call6(SYS_splice, pipe_fd, 0, ends[1], 0, (long)len, SPLICE_F_NONBLOCK);
	while (done < n) {
		ssize_t part = sys_read(ends[0], to + done, (size_t)(n - done));

		if (part <= 0)
			break;
		done += part;
	}
	own_fd_close(ends[0]);
	own_fd_close(ends[1]);
	return n > 0 ? done : n;
}

/* A pipe that poll() says has room takes PIPE_BUF bytes at once. */
static ssize_t write_pipe_by_own(int pipe_fd, const void *from, size_t len)
{
	int ends[2];
	ssize_t n;

	if (pipe_never_blocks(pipe_fd, 0) || own_pipe(ends) < 0)
		return sys_call3(SYS_write, pipe_fd, from, len < PIPE_BUF ? len : PIPE_BUF);
	n = sys_call3(SYS_write, ends[1], from, len < OWN_PIPE_BYTES ? len : OWN_PIPE_BYTES);
	if (n > 0)
		n = sys_call6(SYS_splice, ends[0], 0, pipe_fd, 0, n, SPLICE_F_NONBLOCK);
	own_fd_close(ends[0]);
	own_fd_close(ends[1]);
	return n;
}

ssize_t pipe_or_file_read(int fd, off_t pos, uint8_t *to, size_t len)
{
	struct iovec piece = { .iov_base = to, .iov_len = len };
	ssize_t n = sys_call6(SYS_preadv2, fd, (long)&piece, 1, pos, pos < 0 ? -1 : 0, RWF_NOWAIT);

	return n == -EOPNOTSUPP && pos < 0 ? read_pipe_by_own(fd, to, len) : n;
}

ssize_t pipe_peek(int pipe_fd, uint8_t *to, size_t len)
{
	int ends[2];
	ssize_t n = own_pipe(ends);

	if (n < 0)
		return n;
	n = sys_call4(SYS_tee, pipe_fd, ends[1], (long)len, SPLICE_F_NONBLOCK);
	if (n > 0)
		n = sys_read(ends[0], to, (size_t)n);
	own_fd_close(ends[0]);
	own_fd_close(ends[1]);
	return n;
}

ssize_t pipe_write(int pipe_fd, const void *from, size_t len)
{
	struct iovec piece = { .iov_base = (void *)from, .iov_len = len };
	ssize_t n = sys_call6(SYS_pwritev2, pipe_fd, (long)&piece, 1, -1, -1, RWF_NOWAIT);

	return n == -EOPNOTSUPP ? write_pipe_by_own(pipe_fd, from, len) : n;
}
