// dlsym, intercepted for NVML, whose functions programs look up on a handle of their own. gpumem_preload_watch(handle,
// name, caller) returns a replacement or null; for null this jumps to the C library's dlsym, which still sees the
// caller's return address, as RTLD_NEXT requires.
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
