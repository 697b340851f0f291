/* SPDX-License-Identifier: MIT */
/*
 * stdio over a connection. Streams of libc do their own system calls, which no wrapper sees; so a connection that becomes
 * a stream stays on TCP. One that is on a ring already gets a stream whose reads and writes come back to our wrappers.
 * That one has no descriptor in libc's eyes, so fileno() is answered here. The road not taken: refusing.
 */
#include "shim/real.h"

#include <errno.h>
#include <execinfo.h>
#include <linux/memfd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ringbuf/sys.h"
#include "shim/fd_conn.h"
#include "shim/fdtab.h"
#include "shim/guard.h"

/*
 * Streams over rings, few or none. Entries are used again and never freed, so that the list can be walked without a lock: one would
 * be found locked by the child of a fork that came in between, or by a signal handler.
 */
struct stream {
	FILE *_Atomic file;	/* NULL: none, or not yet */
	_Atomic int taken;
	int fd;
	struct stream *next;
};

static struct stream *_Atomic streams;

static struct stream *take_stream(void)
{
	struct stream *stream;

	for (stream = load_acquire(&streams); stream; stream = stream->next)
		if (exchange(&stream->taken, 1) == 0)
			return stream;
	stream = calloc(1, sizeof(*stream));
	if (!stream)
		return NULL;
	store_relaxed(&stream->taken, 1);
	stream->next = load_relaxed(&streams);
	while (!compare_exchange(&streams, &stream->next, stream))
		;
	return stream;
}

static void give_stream_back(struct stream *stream)
{
	store_relaxed(&stream->file, NULL);
	store_release(&stream->taken, 0);
}

static ssize_t stream_read(void *cookie, char *buf, size_t len)
{
	return read(((struct stream *)cookie)->fd, buf, len);
}

static ssize_t stream_write(void *cookie, const char *buf, size_t len)
{
	ssize_t done = write(((struct stream *)cookie)->fd, buf, len);

	return done < 0 ? 0 : done; /* how a cookie says failure */
}

static int stream_seek(void *cookie, off64_t *pos, int whence)
{
	errno = ESPIPE;
	return -1;
}

static int stream_close(void *cookie)
{
	struct stream *stream = cookie;
	int fd = stream->fd;

	give_stream_back(stream);
	return close(fd);
}

static FILE *open_stream(int fd, const char *mode)
{
	static const cookie_io_functions_t functions = { stream_read, stream_write, stream_seek, stream_close };
	struct stream *stream = take_stream();
	FILE *file;

	if (!stream)
		return NULL;
	stream->fd = fd;
	file = fopencookie(stream, mode, functions);
	if (!file) {
		give_stream_back(stream);
		return NULL;
	}
	store_release(&stream->file, file);
	return file;
}

EXPORT FILE *fdopen(int fd, const char *mode)
{
	/* If it is connected later, the stream is there already, as another number would be. */
	if (guard_ready() && fdtab_tcp(fd))
		fdtab_mark(fd, FD_MARK_COPIED);
	if (!guard_ready() || fd_pin(fd, REASON_STDIO))
		return real_fdopen(fd, mode);
	return open_stream(fd, mode);
}

/* The descriptor of one of our streams, or -1. */
static int stream_fd(FILE *file)
{
	for (struct stream *stream = load_acquire(&streams); stream; stream = stream->next)
		if (load_acquire(&stream->file) == file)
			return stream->fd;
	return -1;
}

EXPORT int fileno(FILE *file)
{
	int fd = unlikely(load_relaxed(&streams)) ? stream_fd(file) : -1;

	return fd >= 0 ? fd : real_fileno(file);
}

EXPORT int fileno_unlocked(FILE *file)
{
	int fd = unlikely(load_relaxed(&streams)) ? stream_fd(file) : -1;

	return fd >= 0 ? fd : real_fileno_unlocked(file);
}

/* The descriptor is about to be closed inside libc, where close() is not heard. */
static void stream_closing(FILE *file)
{
	int kept_errno = errno, fd;

	if (!guard_ready() || !file)
		return;
	fd = real_fileno(file);
	errno = kept_errno;
	if (fdtab_get(fd))
		fd_closing(fd);
}

EXPORT int fclose(FILE *file)
{
	stream_closing(file);
	return real_fclose(file);
}

EXPORT FILE *freopen(const char *path, const char *mode, FILE *file)
{
	stream_closing(file);
	return real_freopen(path, mode, file);
}

EXPORT FILE *freopen64(const char *path, const char *mode, FILE *file)
{
	stream_closing(file);
	return real_freopen64(path, mode, file);
}

/* Is fd a connection on a ring, which libc must not write to by itself? */
static bool needs_us(int fd)
{
	return guard_ready() && !fd_pin(fd, REASON_STDIO);
}

static int print_to_ring(int fd, const char *format, va_list args)
{
	char *text;
	int len = vasprintf(&text, format, args), done = 0;

	if (len < 0)
		return -1;
	while (done < len) {
		ssize_t part = write(fd, text + done, (size_t)(len - done));

		if (part < 0) {
			done = -1;
			break;
		}
		done += (int)part;
	}
	free(text);
	return done;
}

EXPORT int vdprintf(int fd, const char *format, va_list args)
{
	return needs_us(fd) ? print_to_ring(fd, format, args) : real_vdprintf(fd, format, args);
}

int __vdprintf_chk(int fd, int flag, const char *format, va_list args);
int __dprintf_chk(int fd, int flag, const char *format, ...);

EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list args)
{
	return needs_us(fd) ? print_to_ring(fd, format, args) : real___vdprintf_chk(fd, flag, format, args);
}

EXPORT int dprintf(int fd, const char *format, ...)
{
	va_list args;
	int result;

	va_start(args, format);
	result = vdprintf(fd, format, args);
	va_end(args);
	return result;
}

EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...)
{
	va_list args;
	int result;

	va_start(args, format);
	result = __vdprintf_chk(fd, flag, format, args);
	va_end(args);
	return result;
}

/* Of a program that has crashed: no allocation. */
static void trace_to_ring(void *const *frames, int nr, int fd)
{
	int text = sys_memfd_create("ringway-trace", MFD_CLOEXEC);
	char part[512];
	ssize_t n;

	if (text < 0)
		return;
	real_backtrace_symbols_fd(frames, nr, text);
	sys_call3(SYS_lseek, text, 0, SEEK_SET);
	while ((n = sys_read(text, part, sizeof(part))) > 0)
		for (ssize_t done = 0, sent; done < n; done += sent) {
			sent = write(fd, part + done, (size_t)(n - done));
			if (sent <= 0)
				goto over;
		}
over:
	sys_close(text);
}

void __backtrace_symbols_fd(void *const *frames, int nr, int fd);

EXPORT void backtrace_symbols_fd(void *const *frames, int nr, int fd)
{
	if (needs_us(fd))
		trace_to_ring(frames, nr, fd);
	else
		real_backtrace_symbols_fd(frames, nr, fd);
}

EXPORT void __backtrace_symbols_fd(void *const *frames, int nr, int fd)
{
	backtrace_symbols_fd(frames, nr, fd);
}
