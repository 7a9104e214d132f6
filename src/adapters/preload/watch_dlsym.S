// dlsym, for the one library whose functions cannot be had in another way: programs look NVML's up in a handle of their
// own. gpumem_preload_watch(handle, name, caller) answers with a function of ours, or null; then the C library's dlsym is
// jumped to, so that it sees the caller's address as ever, which RTLD_NEXT depends on.
  .text
  .globl dlsym
  .type dlsym, %function
  .p2align 4
dlsym:
#if defined(__aarch64__)
  hint #34  // bti c
  stp x29, x30, [sp, #-32]!
  mov x29, sp
  stp x0, x1, [sp, #16]
  mov x2, x30
  bl gpumem_preload_watch
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #32
  cbnz x16, 1f
  adrp x16, gpumem_preload_dlsym
  ldr x16, [x16, :lo12:gpumem_preload_dlsym]
  br x16
1:
  mov x0, x16
  ret
#else
  endbr64
  movq (%rsp), %rdx
  pushq %rdi
  pushq %rsi
  subq $8, %rsp
  call gpumem_preload_watch
  addq $8, %rsp
  popq %rsi
  popq %rdi
  testq %rax, %rax
  jnz 1f
  jmp *gpumem_preload_dlsym(%rip)
1:
  ret
#endif
  .size dlsym, .-dlsym
  .section .note.GNU-stack, "", %progbits
