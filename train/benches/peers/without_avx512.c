// Hides AVX-512 and AMX from a program: run it with this library in LD_PRELOAD.
//
//   gcc -O2 -shared -fPIC -o /tmp/without_avx512.so train/benches/peers/without_avx512.c
//   LD_PRELOAD=/tmp/without_avx512.so PROGRAM
//
// The kernel makes `cpuid` a fault (`arch_prctl`, Linux on processors with the flag `cpuid_fault`
// in /proc/cpuinfo). The handler executes the instruction, and clears the bits of leaf 7 and of
// leaf 0x1E that announce AVX-512 and AMX. Child processes that inherit LD_PRELOAD do the same.
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012 };

static void allow_cpuid(int allowed) {
    if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, allowed) != 0) {
        perror("without_avx512: this machine cannot intercept cpuid");
        _exit(2);
    }
}

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)registers[REG_RIP];
    if (code[0] != 0x0F || code[1] != 0xA2) { // A real fault.
        signal(number, SIG_DFL);
        return;
    }
    unsigned leaf = (unsigned)registers[REG_RAX], subleaf = (unsigned)registers[REG_RCX];
    unsigned a, b, c, d;
    allow_cpuid(1);
    __cpuid_count(leaf, subleaf, a, b, c, d);
    allow_cpuid(0);
    if (leaf == 7 && subleaf == 0) {
        // F, DQ, IFMA, PF, ER, CD, BW, VL; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; 4VNNIW, 4FMAPS,
        // VP2INTERSECT, AMX-BF16, FP16, AMX-TILE, AMX-INT8.
        b &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);
        c &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);
        d &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);
    } else if (leaf == 7 && subleaf == 1) {
        a &= ~(1u << 4 | 1u << 5 | 1u << 21 | 1u << 23); // AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA.
        d &= ~(1u << 4 | 1u << 5 | 1u << 10 | 1u << 19); // AVX-VNNI-INT8, AVX-NE-CONVERT, -INT16, AVX10.
    } else if (leaf == 0x1E || leaf == 0x24) {
        a = b = c = d = 0;
    }
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void hide(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    allow_cpuid(0);
}
