#pragma once

// Before functions whose loops are plain C++ that the compiler turns into vector code: on x86-64 it does so for more
// than one generation of processors, and the loader picks the one that fits the machine.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define VLMTRAIN_VECTORIZED __attribute__((target_clones("avx2", "default")))
#else
#define VLMTRAIN_VECTORIZED
#endif
