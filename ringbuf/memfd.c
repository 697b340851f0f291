/* SPDX-License-Identifier: MIT */
/* Creating and checking sealed memfds. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "ringbuf/memfd.h"
#include "ringbuf/sys.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define SEALS_NEEDED (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

int memfd_create_sealed(const char *name, uint64_t bytes)
{
	struct rlimit limit = { .rlim_cur = RLIM_INFINITY };
	int fd, ret;

	ret = sys_prlimit(0, RLIMIT_FSIZE, NULL, &limit);
	if (ret == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
		return -EFBIG;
	fd = sys_memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (fd == -EINVAL)
		fd = sys_memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return fd;
	ret = sys_ftruncate(fd, (off_t)bytes);
	if (ret < 0)
		goto close_fd;
	ret = (int)sys_fcntl(fd, F_ADD_SEALS, SEALS_NEEDED);
	if (ret < 0)
		goto close_fd;
	return fd;

close_fd:
	sys_close(fd);
	return ret;
}

/*
 * Seals exist only on memfds, and those of huge pages are refused: a page that a peer punched out of one cannot always be
 * brought back, and the access would raise SIGBUS.
 */
int memfd_check_sealed(int fd, uint64_t *bytes)
{
	long seals = sys_fcntl(fd, F_GET_SEALS, 0);
	struct statfs fs;
	struct stat st;

	if (seals < 0 || (seals & SEALS_NEEDED) != SEALS_NEEDED)
		return -EPROTO;
	if (sys_fstatfs(fd, &fs) < 0 || fs.f_type != TMPFS_MAGIC)
		return -EPROTO;
	if (sys_fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < 0)
		return -EPROTO;
	*bytes = (uint64_t)st.st_size;
	return 0;
}
