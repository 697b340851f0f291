/* SPDX-License-Identifier: MIT */
/* A library whose constructor and destructor use sockets. */
__attribute__((visibility("default"))) int lifetime_fd(void);
