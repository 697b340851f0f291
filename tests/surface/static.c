/* SPDX-License-Identifier: MIT */
/* Linked statically: a preload variable in its environment means nothing to it. */
int main(void)
{
	return 17;
}
