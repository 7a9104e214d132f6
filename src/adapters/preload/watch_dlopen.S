// dlopen and dlmopen: who opens the driver by a name of it gets the shim. gpumem_preload_opens(file, caller) answers with the
// name to open instead, or with `file`; then the C library's function is jumped to, so that it sees the caller's address as
// ever, which decides where it searches.
.macro watch name real ask file
  .globl \name
  .type \name, @function
  .p2align 4
\name:
  endbr64
  movq (%rsp), %rax
  pushq %rdi
  pushq %rsi
  pushq %rdx
  subq $16, %rsp
  movq \file, %rdi
  movq %rax, %rsi
  call \ask
  addq $16, %rsp
  popq %rdx
  popq %rsi
  popq %rdi
  movq %rax, \file
  jmp *\real(%rip)
  .size \name, .-\name
.endm

  .text
  watch dlopen gpumem_preload_dlopen gpumem_preload_opens %rdi
  watch dlmopen gpumem_preload_dlmopen gpumem_preload_opens_apart %rsi
  .section .note.GNU-stack, "", @progbits
