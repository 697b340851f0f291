/* SPDX-License-Identifier: MIT */
/* Stands in front of libc's clock, as objects do that show a program another time, and stops it. */
#include <time.h>

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t)
{
	(void)id;
	*t = (struct timespec){ .tv_sec = 1000000000 };
	return 0;
}
