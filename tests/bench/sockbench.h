/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TESTS_BENCH_SOCKBENCH_H
#define RINGWAY_TESTS_BENCH_SOCKBENCH_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE 8
#define WARM_UP 3000
/*
 * A figure is the median of so many batches, so that what interrupts a few of them does not count. A server that has to know goes through
 * as many, and one to warm up.
 */
#define BATCHES 50

/* Ends the program, with errno's word. */
_Noreturn void die(const char *what);
uint64_t now_ns(void);
/* One call of `batch`, which does `count` operations: nanoseconds for one. And the median of BATCHES such calls. */
double batch_ns(void (*batch)(int arg, uint64_t count), int arg, uint64_t count);
double median_batch(void (*batch)(int arg, uint64_t count), int arg, uint64_t count);
/* Of BATCHES values, which it sorts. */
double median(double *values);

void send_all(int fd, const void *buf, size_t len);
/* false at the end of the stream. */
bool recv_all(int fd, void *buf, size_t len);
int connect_to(uint16_t port);
int accept_from(int listener);

extern pid_t server_pid;

/* Both processes of a mode that is compared with shared memory share these many bytes, zeroed. */
void *shared_memory(size_t len);

/* sockbench_busy.c */
void echo(int fd);
void round_trips(int fd, uint64_t count);

/* Each mode has a client, which prints the figures, and a server, which runs until it is killed or has nothing left to do. */
#define MODE(name) \
	void name##_client(uint16_t port, uint64_t count); \
	void name##_server(int listener, uint64_t count)
MODE(pingpong);
MODE(small);
MODE(large);
MODE(short);
MODE(plain);
MODE(idle);
MODE(cpu);
MODE(syscalls);
MODE(steps);
MODE(readiness);
#undef MODE

#endif
