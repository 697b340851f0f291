/* SPDX-License-Identifier: MIT */
/*
 * dlopen() and dlmopen(): libc looks at who has called, for that object's search path and namespace. So these are no C functions that call libc's; what they have to say is
 * said first (loader_calls.c), then libc's is jumped to as if it had been called at once.
 */
	.text
	.macro	PASS_ON name, before
	.globl	\name
	.type	\name, %function
	.p2align 4
\name:
	.cfi_startproc
#if defined(__x86_64__)
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	pushq	%rdx
	.cfi_adjust_cfa_offset 8
	call	\before
	popq	%rdx
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	jmp	*%rax
#elif defined(__aarch64__)
	stp	x0, x1, [sp, #-32]!
	.cfi_adjust_cfa_offset 32
	stp	x2, x30, [sp, #16]
	.cfi_rel_offset x30, 24
	bl	\before
	mov	x16, x0
	ldp	x2, x30, [sp, #16]
	.cfi_restore x30
	ldp	x0, x1, [sp], #32
	.cfi_adjust_cfa_offset -32
	br	x16
#else
#error "no dlopen for this machine"
#endif
	.cfi_endproc
	.size	\name, . - \name
	.endm

	PASS_ON	dlopen, loader_before_dlopen
	PASS_ON	dlmopen, loader_before_dlmopen
	.section .note.GNU-stack, "", %progbits
