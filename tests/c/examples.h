// tests/c/examples.h — what each program of examples/ computes, as C functions that a C++ test compares with it
#ifndef ATTUNE_TESTS_C_EXAMPLES_H
#define ATTUNE_TESTS_C_EXAMPLES_H

#include <attune/c.h>

#ifdef __cplusplus
extern "C" {
#endif

// Each takes a call whose tensors are set, captures among them, and computes it.
attune_error* c_01_plain(const attune_call* call);
attune_error* c_02_causal(const attune_call* call);
attune_error* c_03_alibi(const attune_call* call);             // slope, doc
attune_error* c_04_documents_packed(const attune_call* call);  // cu_q and cu_kv
attune_error* c_04_documents_masked(const attune_call* call);  // doc
attune_error* c_05_bias_gradient(const attune_call* call);     // table, its gradient: a backward
attune_error* c_06_text(const attune_call* call);              // slope
attune_error* c_07_sink(const attune_call* call);              // logit
attune_error* c_07_dropout(const attune_call* call, int seed);
attune_error* c_08_sum(const attune_call* call);  // u, w
// One query at a time, [1, H, n, D] each, on two workers of its own, in memory of its own.
attune_error* c_09_decode(const attune_call* call);
// Counts kernels of expressions that were built, and calls.
attune_error* c_10_watch(const attune_call* call, int* built, int* called);
// The same cover for all calls; `count` of them.
attune_error* c_11_cover(const attune_call* calls, int count);  // doc
attune_error* c_12_packed(const attune_call* call);             // cu_q and cu_kv, with max_q_len and max_kv_len
attune_error* c_13_training(const attune_call* call);           // table, cu_q and cu_kv: a forward, or a backward

#ifdef __cplusplus
}
#endif

#endif
