/* SPDX-License-Identifier: MIT */
/*
 * The only file that names memory_order_*. Everything else says what an access means: publish, observe, fence. The
 * macros take a pointer to an _Atomic object of any size that the machine handles without a lock.
 */
#ifndef RINGWAY_RINGBUF_ATOMIC_H
#define RINGWAY_RINGBUF_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define NOINLINE __attribute__((noinline))

/* No order: counters, and words whose order is made by somebody else's fence. */
#define load_relaxed(p) atomic_load_explicit((p), memory_order_relaxed)
#define store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)

/* A plain word whose writer holds a lock, for readers that do not: whole, but of no certain age. */
#define load_unlocked(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define store_unlocked(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)

/* What was written before the release is seen after the acquire that reads its value. */
#define load_acquire(p) atomic_load_explicit((p), memory_order_acquire)
#define store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)

/* Read-modify-write, always in the one total order: rare paths only, so they are never weakened. */
#define fetch_add(p, v) atomic_fetch_add_explicit((p), (v), memory_order_seq_cst)
#define fetch_sub(p, v) atomic_fetch_sub_explicit((p), (v), memory_order_seq_cst)
#define fetch_or(p, v) atomic_fetch_or_explicit((p), (v), memory_order_seq_cst)
#define fetch_and(p, v) atomic_fetch_and_explicit((p), (v), memory_order_seq_cst)
#define exchange(p, v) atomic_exchange_explicit((p), (v), memory_order_seq_cst)

/* *expected is overwritten with what was found if the swap fails. May not fail spuriously. */
#define compare_exchange(p, expected, v) \
	atomic_compare_exchange_strong_explicit((p), (expected), (v), memory_order_seq_cst, memory_order_relaxed)

/* A word with one writer that others only read: no lock prefix. */
#define count_add(p, v) store_relaxed((p), load_relaxed(p) + (v))

/* The middle of every "store mine, look at yours": both sides need it, or the other side's membarrier. */
static inline void fence_full(void)
{
	atomic_thread_fence(memory_order_seq_cst);
}

/* Later stores stay behind earlier loads and stores; no instruction on x86. */
static inline void fence_release(void)
{
	atomic_thread_fence(memory_order_release);
}

/* Later loads and stores stay behind earlier loads; no instruction on x86. */
static inline void fence_acquire(void)
{
	atomic_thread_fence(memory_order_acquire);
}

/* Orders the compiler only: the light half of a pair whose heavy half is barrier_heavy(). */
static inline void fence_compiler(void)
{
	atomic_signal_fence(memory_order_seq_cst);
}

/* Inside a spin loop. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("isb" ::: "memory");
#else
	fence_compiler();
#endif
}

static inline void cpu_relax_times(uint32_t pauses)
{
	while (pauses--)
		cpu_relax();
}

#endif
