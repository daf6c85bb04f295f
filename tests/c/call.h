// tests/c/call.h — what C tests share: checks that count, random tensors, errors by their code
#ifndef ATTUNE_TESTS_C_CALL_H
#define ATTUNE_TESTS_C_CALL_H

#include <attune/c.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                               \
  do {                                                                 \
    if (!(condition)) {                                                \
      printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                      \
    }                                                                  \
  } while (0)

// Frees the error, and tells whether it has this code; no error has the code "".
static inline int is(attune_error* error, const char* code, const char* file, int line) {
  attune_said said;
  memset(&said, 0, sizeof said);
  said.size = sizeof said;
  said.code = said.message = "";
  if (error) attune_error_read(error, &said);
  const int right = strcmp(said.code, code) == 0;
  if (!right) printf("%s:%d: wanted `%s`, got `%s`\n%s\n", file, line, code, said.code, said.message);
  failures += !right;
  attune_error_free(error);
  return right;
}
#define REFUSED(call, code) is((call), (code), __FILE__, __LINE__)
#define GOOD(call) is((call), "", __FILE__, __LINE__)

// True, with a message, if an emulated call found no C++ compiler.
static inline int is_no_compiler(attune_error* error) {
  attune_said said;
  memset(&said, 0, sizeof said);
  said.size = sizeof said;
  if (!error) return 0;
  attune_error_read(error, &said);
  if (strcmp(said.code, "no-compiler") != 0) return 0;
  printf("[skip] %s\n", said.message);
  return 1;
}

// A tensor with room for its own extents.
typedef struct {
  attune_tensor t;
  int64_t shape[4], strides[4];
} tensor;

static inline tensor* of(void* data, int code, int bits, int32_t rank, int64_t a, int64_t b, int64_t c, int64_t d) {
  tensor* out = (tensor*)calloc(1, sizeof *out);
  const int64_t shape[4] = {a, b, c, d};
  memcpy(out->shape, shape, sizeof shape);
  out->t.data = data;
  out->t.device.device_type = ATTUNE_CPU;
  out->t.ndim = rank;
  out->t.dtype.code = (uint8_t)code;
  out->t.dtype.bits = (uint8_t)bits;
  out->t.dtype.lanes = 1;
  out->t.shape = out->shape;
  return out;
}
static inline tensor* floats(float* data, int32_t rank, int64_t a, int64_t b, int64_t c, int64_t d) {
  return of(data, ATTUNE_FLOAT, 32, rank, a, b, c, d);
}

static inline float* normals(size_t count, unsigned seed) {
  float* out = (float*)malloc(count * sizeof *out);
  unsigned state = seed * 2654435761u + 12345u;
  for (size_t i = 0; i < count; ++i) {
    float sum = -6;
    for (int n = 0; n < 12; ++n) {
      state = state * 1664525u + 1013904223u;
      sum += (float)(state >> 8) / 16777216.0f;
    }
    out[i] = sum;
  }
  return out;
}

#endif
