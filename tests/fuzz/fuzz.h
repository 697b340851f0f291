/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TESTS_FUZZ_H
#define RINGWAY_TESTS_FUZZ_H

/*
 * What each fuzz target offers. Under libFuzzer the first function alone is used; the driver of the ordinary build mutates the
 * target's own honest inputs, which are made by the encoders of the tree and so never grow stale.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define FUZZ_INPUT_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The honest input number `nr`, its size; 0 past the last one. */
size_t fuzz_seed(unsigned int nr, uint8_t out[FUZZ_INPUT_MAX]);

/* A property that does not hold ends the run, whatever NDEBUG says. */
#define fuzz_check(what)                                                                                                \
	do {                                                                                                            \
		if (!(what)) {                                                                                          \
			fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #what);                       \
			abort();                                                                                        \
		}                                                                                                       \
	} while (0)

/* Takes an input apart, value by value; zeros once it is used up. */
struct fuzz_bytes {
	const uint8_t *at;
	size_t left;
};

static inline uint64_t fuzz_take(struct fuzz_bytes *in, unsigned int nr_bytes)
{
	uint64_t v = 0;

	for (unsigned int i = 0; i < nr_bytes && in->left; i++, in->left--)
		v |= (uint64_t)*in->at++ << (8 * i);
	return v;
}

#endif
