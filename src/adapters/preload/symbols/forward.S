// The driver's names, each a jump through its own slot. A slot first points to the code after its jump, which calls
// gpumem_preload_bind(slot): it returns the function to use from then on, the shim's or the driver's. All argument
// registers are preserved.
#if !defined(__x86_64__) && !defined(__aarch64__)
#error "gpumem_preload is written for x86-64 and aarch64"
#endif

.macro forward name
  .pushsection .data.gpumem_slots, "aw", %progbits
  .quad first_\name
  .popsection
  .globl \name
  .type \name, %function
  .p2align 4
\name:
#if defined(__aarch64__)
  hint #34  // bti c
  adrp x16, slot_\name
  ldr x16, [x16, :lo12:slot_\name]
  br x16
first_\name:
  hint #36  // bti j
  adrp x17, slot_\name
  add x17, x17, :lo12:slot_\name
  b bind_first
#else
  endbr64
  jmp *slot_\name(%rip)
first_\name:
  endbr64
  leaq slot_\name(%rip), %r11
  jmp bind_first
#endif
  .size \name, .-\name
.endm

// Each slot has its own label, which the jump refers to.
.macro slot name
  .pushsection .data.gpumem_slots, "aw", %progbits
slot_\name:
  .popsection
.endm

  .section .data.gpumem_slots, "aw", %progbits
  .p2align 3
  .globl gpumem_preload_slots
  .hidden gpumem_preload_slots
gpumem_preload_slots:

  .text
  .p2align 4
  .type bind_first, %function
bind_first:
#if defined(__aarch64__)
  stp x29, x30, [sp, #-208]!
  mov x29, sp
  stp x0, x1, [sp, #16]
  stp x2, x3, [sp, #32]
  stp x4, x5, [sp, #48]
  stp x6, x7, [sp, #64]
  stp q0, q1, [sp, #80]
  stp q2, q3, [sp, #112]
  stp q4, q5, [sp, #144]
  stp q6, q7, [sp, #176]
  mov x0, x17
  bl gpumem_preload_bind
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldp x2, x3, [sp, #32]
  ldp x4, x5, [sp, #48]
  ldp x6, x7, [sp, #64]
  ldp q0, q1, [sp, #80]
  ldp q2, q3, [sp, #112]
  ldp q4, q5, [sp, #144]
  ldp q6, q7, [sp, #176]
  ldp x29, x30, [sp], #208
  br x16
#else
  pushq %rbp
  movq %rsp, %rbp
  pushq %rdi
  pushq %rsi
  pushq %rdx
  pushq %rcx
  pushq %r8
  pushq %r9
  pushq %rax
  subq $136, %rsp
  andq $-16, %rsp
  movaps %xmm0, 0(%rsp)
  movaps %xmm1, 16(%rsp)
  movaps %xmm2, 32(%rsp)
  movaps %xmm3, 48(%rsp)
  movaps %xmm4, 64(%rsp)
  movaps %xmm5, 80(%rsp)
  movaps %xmm6, 96(%rsp)
  movaps %xmm7, 112(%rsp)
  movq %r11, %rdi
  call gpumem_preload_bind
  movq %rax, %r11
  movaps 0(%rsp), %xmm0
  movaps 16(%rsp), %xmm1
  movaps 32(%rsp), %xmm2
  movaps 48(%rsp), %xmm3
  movaps 64(%rsp), %xmm4
  movaps 80(%rsp), %xmm5
  movaps 96(%rsp), %xmm6
  movaps 112(%rsp), %xmm7
  leaq -56(%rbp), %rsp
  popq %rax
  popq %r9
  popq %r8
  popq %rcx
  popq %rdx
  popq %rsi
  popq %rdi
  popq %rbp
  jmp *%r11
#endif
  .size bind_first, .-bind_first

#define NAME(name) slot name ; forward name ;
#include "driver_names.def"
#undef NAME

  .section .note.GNU-stack, "", %progbits
