// dlopen and dlmopen: a program that opens the driver by one of its names gets the shim. gpumem_preload_opens(file,
// caller) returns the name to open instead, or `file`. Then a jump enters the C library's function, which still sees
// the caller's return address: it decides where the loader searches.
#if defined(__aarch64__)
#define FIRST x0
#define SECOND x1
#else
#define FIRST %rdi
#define SECOND %rsi
#endif

.macro watch name real ask file
  .globl \name
  .type \name, %function
  .p2align 4
\name:
#if defined(__aarch64__)
  hint #34  // bti c
  stp x29, x30, [sp, #-48]!
  mov x29, sp
  stp x0, x1, [sp, #16]
  str x2, [sp, #32]
  mov x0, \file
  mov x1, x30
  bl \ask
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldr x2, [sp, #32]
  ldp x29, x30, [sp], #48
  mov \file, x16
  adrp x16, \real
  ldr x16, [x16, :lo12:\real]
  br x16
#else
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
#endif
  .size \name, .-\name
.endm

  .text
  watch dlopen gpumem_preload_dlopen gpumem_preload_opens FIRST
  watch dlmopen gpumem_preload_dlmopen gpumem_preload_opens_apart SECOND
  .section .note.GNU-stack, "", %progbits
