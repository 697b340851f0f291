/* SPDX-License-Identifier: MIT */
/* The program's name as the user knows it: the last part of the path that was executed, kept from before main. */
#ifndef RINGWAY_SHIM_PROGRAM_H
#define RINGWAY_SHIM_PROGRAM_H

#pragma GCC visibility push(hidden)
extern char program_name[64];
void program_read_name(const char *argv0);
#pragma GCC visibility pop

#endif
