/* SPDX-License-Identifier: MIT */
/*
 * vfork(): parent and child return from one call on one stack, so it cannot be a C function around libc's. What the two
 * must keep apart is held in registers, of which each has its own. guard_vfork_enter() marks the thread before the child
 * comes into being; the parent, which runs again only when the child has gone, takes the mark off.
 */
	.text
	.globl	vfork
	.type	vfork, %function
	.globl	__vfork
	.type	__vfork, %function
	.p2align 4
vfork:
__vfork:
	.cfi_startproc
#if defined(__x86_64__)
	subq	$8, %rsp
	.cfi_adjust_cfa_offset 8
	call	guard_vfork_enter
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	/* The child's calls will overwrite the return address on the stack: the parent puts it back. */
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	.cfi_register %rip, %rdi
	movl	$58, %eax		/* SYS_vfork; leaves rdi alone */
	syscall
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %rip, 0
	testl	%eax, %eax
	jz	1f
	movq	%rax, %rdi
	jmp	guard_vfork_leave	/* returns the number, or -1 and errno, to our caller */
1:	ret
#elif defined(__aarch64__)
	str	x30, [sp, #-16]!
	.cfi_adjust_cfa_offset 16
	.cfi_rel_offset x30, 0
	bl	guard_vfork_enter
	ldr	x30, [sp], #16
	.cfi_adjust_cfa_offset -16
	.cfi_restore x30
	mov	x0, #0x4111		/* CLONE_VM | CLONE_VFORK | SIGCHLD */
	mov	x1, #0
	mov	x2, #0
	mov	x3, #0
	mov	x4, #0
	mov	x8, #220		/* SYS_clone; keeps x30 */
	svc	#0
	cbz	x0, 1f
	b	guard_vfork_leave
1:	ret
#else
#error "no vfork for this machine"
#endif
	.cfi_endproc
	.size	vfork, . - vfork
	.size	__vfork, . - __vfork
	.section .note.GNU-stack, "", %progbits
