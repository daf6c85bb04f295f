# examples/bundle/kernels.S — the bundle that KERNELS names, as bytes of the program
    .section .rodata
    .balign 64
    .globl kernels_begin
    .globl kernels_end
kernels_begin:
    .incbin KERNELS
kernels_end:
    .section .note.GNU-stack,"",%progbits
