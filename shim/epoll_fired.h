/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_EPOLL_FIRED_H
#define RINGWAY_EPOLL_FIRED_H

#include <stdbool.h>

/*
 * Has the EPOLLONESHOT registration of `fd` in the kernel's set `epfd` been told, and not been armed since? From /proc/self/fdinfo; false where that does not say, as in a
 * set with many registrations. With the set locked the answer stays true: who arms it waits for the lock.
 */
bool epoll_has_fired(int epfd, int fd);

#endif
