/* SPDX-License-Identifier: MIT */
/*
 * Reads the settings. Values are copied, because programs that retitle themselves write over their environment. What is
 * wrong is said once on standard error, and the default holds.
 */
#include "shim/options.h"

#include <stddef.h>
#include <string.h>

#include "shim/text.h"

struct options options;

#define PREFIX "RINGWAY_"

/* Room for the paths; one that does not fit is a bad value. */
static char path_store[3 * 4096];
static size_t path_used;

static bool parse_number(const char **at, uint64_t max, uint64_t *out)
{
	const char *p = *at;
	uint64_t value = 0;

	if (*p < '0' || *p > '9')
		return false;
	for (; *p >= '0' && *p <= '9'; p++) {
		if (value > (max - (uint64_t)(*p - '0')) / 10)
			return false;
		value = value * 10 + (uint64_t)(*p - '0');
	}
	*at = p;
	*out = value;
	return value <= max;
}

/* A number with an optional K or M. */
static bool parse_bytes(const char **at, uint64_t max, uint64_t *out)
{
	unsigned int shift = 0;

	if (!parse_number(at, max, out))
		return false;
	if (**at == 'K' || **at == 'k')
		shift = 10;
	else if (**at == 'M' || **at == 'm')
		shift = 20;
	if (shift)
		++*at;
	if (*out > max >> shift)
		return false;
	*out <<= shift;
	return true;
}

static bool parse_transports(const char *value, unsigned int *out)
{
	static const struct {
		const char *name;
		unsigned int bit;
	} known[] = { { "shm", TRANSPORT_BIT_SHM }, { "verbs", TRANSPORT_BIT_VERBS } };
	unsigned int bits = 0;

	if (strcmp(value, "none") == 0) {
		*out = 0;
		return true;
	}
	for (;;) {
		size_t len = strcspn(value, ",");
		unsigned int bit = 0;

		for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
			if (strlen(known[i].name) == len && memcmp(known[i].name, value, len) == 0)
				bit = known[i].bit;
		if (!bit)
			return false;
		bits |= bit;
		if (value[len] == '\0')
			break;
		value += len + 1;
	}
	*out = bits;
	return true;
}

static bool parse_after(const char *value, struct option_after *out)
{
	uint64_t calls, bytes = 0;

	if (!parse_number(&value, UINT32_MAX, &calls))
		return false;
	if (*value == ':') {
		value++;
		if (!parse_bytes(&value, UINT64_MAX >> 1, &bytes))
			return false;
	}
	if (*value)
		return false;
	out->calls = (uint32_t)calls;
	out->bytes = bytes;
	return true;
}

static bool parse_ring(const char *value, uint32_t *out)
{
	uint64_t bytes;
	uint32_t size = 4096;

	if (strcmp(value, "auto") == 0) {
		*out = OPTION_RING_AUTO;
		return true;
	}
	if (!parse_bytes(&value, UINT64_C(1) << 30, &bytes) || *value || bytes < 4096)
		return false;
	while (size < bytes)
		size <<= 1;
	*out = size;
	return true;
}

static bool parse_spin(const char *value, int64_t *out)
{
	uint64_t us;

	if (strcmp(value, "auto") == 0) {
		*out = OPTION_SPIN_AUTO;
		return true;
	}
	if (!parse_number(&value, 1000000, &us) || *value)
		return false;
	*out = (int64_t)us;
	return true;
}

static bool parse_patience(const char *value, unsigned int *out)
{
	uint64_t ms;

	if (!parse_number(&value, 600000, &ms) || *value || ms < 10)
		return false;
	*out = (unsigned int)ms;
	return true;
}

/* Seconds, with a point and up to nine digits behind it or without. */
static bool parse_idle(const char *value, int64_t *out)
{
	uint64_t seconds, fraction = 0;
	const char *point;

	if (!parse_number(&value, UINT32_MAX, &seconds))
		return false;
	if (*value == '.') {
		point = value++;
		if (!parse_number(&value, 999999999, &fraction))
			return false;
		for (ptrdiff_t digits = value - point - 1; digits < 9; digits++)
			fraction *= 10;
		if (value - point > 10)
			return false;
	}
	if (*value)
		return false;
	*out = (int64_t)(seconds * 1000000000 + fraction);
	return true;
}

static bool parse_max(const char *value, uint32_t *out)
{
	uint64_t number;

	if (!parse_number(&value, UINT32_MAX, &number) || *value)
		return false;
	*out = (uint32_t)number;
	return true;
}

static bool parse_log_level(const char *value, enum log_level *out)
{
	static const char *const names[] = { "off", "error", "warn", "info", "debug" };

	for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(value, names[i]) == 0) {
			*out = (enum log_level)i;
			return true;
		}
	return false;
}

static bool parse_path(const char *value, const char **out)
{
	size_t size = strlen(value) + 1;

	if (size == 1 || size > sizeof(path_store) - path_used)
		return false;
	*out = memcpy(path_store + path_used, value, size);
	path_used += size;
	return true;
}

#define OPTION(field, name, syntax, initial, sentence, parser)                                                         \
	static bool set_##field(const char *value)                                                                     \
	{                                                                                                              \
		return parser(value, &options.field);                                                                  \
	}
#include "options.def"
#undef OPTION

static const struct {
	const char *name, *syntax, *initial;
	bool (*set)(const char *value);
} table[] = {
#define OPTION(field, name, syntax, initial, sentence, parser) { name, syntax, initial, set_##field },
#include "options.def"
#undef OPTION
};

enum { NR_OPTIONS = sizeof(table) / sizeof(table[0]) };

bool option_set(unsigned int row, const char *value)
{
	return table[row].set(value);
}

static void complain(const char *name, size_t name_len, const char *value, const char *what, const char *syntax)
{
	struct text_line line;

	text_start(&line.text, line.bytes, sizeof(line.bytes));
	text_add(&line.text, "ringway: ");
	text_add_bytes(&line.text, name, name_len);
	text_add(&line.text, "=\"");
	text_add(&line.text, value);
	text_add(&line.text, "\" ignored: ");
	text_add(&line.text, what);
	text_add(&line.text, syntax);
	text_end_line(&line.text);
	text_to_stderr(&line.text);
}

/* "RINGWAY_AFTER, RINGWAY_RING, ..." */
static void complain_unknown(const char *name, size_t name_len, const char *value)
{
	char known[256];
	struct text names;

	text_start(&names, known, sizeof(known));
	for (unsigned int i = 0; i < NR_OPTIONS; i++) {
		text_add(&names, i ? " " : "");
		text_add(&names, table[i].name + sizeof(PREFIX) - 1);
	}
	text_end(&names);
	complain(name, name_len, value, "no such setting; after " PREFIX " there is ", known);
}

static void read_one(const char *entry, unsigned int *seen)
{
	const char *value = strchr(entry, '=');
	size_t name_len;

	if (!value)
		return;
	name_len = (size_t)(value++ - entry);
	for (unsigned int i = 0; i < NR_OPTIONS; i++) {
		if (strlen(table[i].name) != name_len || memcmp(table[i].name, entry, name_len) != 0)
			continue;
		/* The first of two entries is the one that getenv() finds. An empty value is an unset one. */
		if (!(*seen & 1u << i) && *value && !option_set(i, value))
			complain(entry, name_len, value, "expected ", table[i].syntax);
		*seen |= 1u << i;
		return;
	}
	complain_unknown(entry, name_len, value);
}

void options_read(char *const envp[])
{
	unsigned int seen = 0;

	_Static_assert(NR_OPTIONS <= 32, "seen has a bit for each");
	options = (struct options){ .enabled = false };
	path_used = 0;
	for (unsigned int i = 0; i < NR_OPTIONS; i++)
		if (*table[i].initial)
			(void)option_set(i, table[i].initial);
	for (char *const *entry = envp; entry && *entry; entry++)
		if (strncmp(*entry, "RINGWAY=", sizeof("RINGWAY=") - 1) == 0) {
			options.enabled = strcmp(*entry + sizeof("RINGWAY=") - 1, "1") == 0;
			break;
		}
	if (!options.enabled)
		return;
	for (char *const *entry = envp; *entry; entry++)
		if (strncmp(*entry, PREFIX, sizeof(PREFIX) - 1) == 0)
			read_one(*entry, &seen);
}
