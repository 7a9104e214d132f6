// dlsym, for the one library whose functions cannot be had in another way: programs look NVML's up in a handle of their
// own. gpumem_preload_watch(handle, name, caller) answers with a function of ours, or null; then the C library's dlsym is
// jumped to, so that it sees the caller's address as ever, which RTLD_NEXT depends on.
  .text
  .globl dlsym
  .type dlsym, @function
  .p2align 4
dlsym:
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
  .size dlsym, .-dlsym
  .section .note.GNU-stack, "", @progbits
