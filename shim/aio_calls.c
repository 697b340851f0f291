/* SPDX-License-Identifier: MIT */
/*
 * POSIX asynchronous I/O: threads of libc's own read and write by calls that no wrapper sees. A connection used so stays on
 * TCP; on one that is on a ring already the request is refused as by a file that cannot do it.
 */
#include "shim/real.h"

#include <errno.h>

#include "shim/fd_conn.h"
#include "shim/guard.h"

static bool refused(int fd)
{
	if (!guard_ready() || fd_pin(fd, REASON_AIO))
		return false;
	errno = EINVAL;
	return true;
}

#define AIO_CALL(name, block_type)                                                                                     \
	EXPORT int name(struct block_type *block)                                                                      \
	{                                                                                                              \
		return refused(block->aio_fildes) ? -1 : real_##name(block);                                           \
	}

AIO_CALL(aio_read, aiocb)
AIO_CALL(aio_read64, aiocb64)
AIO_CALL(aio_write, aiocb)
AIO_CALL(aio_write64, aiocb64)

#define LIO_CALL(name, block_type)                                                                                     \
	EXPORT int name(int mode, struct block_type *const list[], int nr, struct sigevent *event)                     \
	{                                                                                                              \
		for (int i = 0; i < nr; i++)                                                                           \
			if (list[i] && list[i]->aio_lio_opcode != LIO_NOP && refused(list[i]->aio_fildes))             \
				return -1;                                                                             \
		return real_##name(mode, list, nr, event);                                                             \
	}

LIO_CALL(lio_listio, aiocb)
LIO_CALL(lio_listio64, aiocb64)
