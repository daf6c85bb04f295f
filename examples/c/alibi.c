// examples/c/alibi.c — attention from C: expressions as text, tensors of your own, errors as values
#include <attune/c.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// [errors]
// Prints what went wrong as attune would, and ends the program.
static void check(attune_error* error) {
  if (!error) return;
  attune_said said = {.size = sizeof said};
  attune_error_read(error, &said);
  fprintf(stderr, "%s\n", said.message);
  attune_error_free(error);
  exit(1);
}
// [errors]

enum { heads = 4, n = 64, d = 16 };

// A tensor of the host's memory, of floats: the fields are DLPack's.
static attune_tensor tensor(float* data, int32_t rank, int64_t* shape) {
  const attune_tensor out = {.data = data,
                             .device = {.device_type = ATTUNE_CPU},
                             .ndim = rank,
                             .dtype = {.code = ATTUNE_FLOAT, .bits = 32, .lanes = 1},
                             .shape = shape};
  return out;
}

static float normal(void) {
  float sum = -6;
  for (int i = 0; i < 12; ++i) sum += (float)rand() / (float)RAND_MAX;
  return sum;
}

static float q[heads * n * d], k[heads * n * d], v[heads * n * d], o[heads * n * d], slope[heads];

int main(void) {
  for (int i = 0; i < heads * n * d; ++i) q[i] = normal(), k[i] = normal(), v[i] = normal();
  for (int h = 0; h < heads; ++h) slope[h] = exp2f(-2.0f * (float)(h + 1));

  // [call]
  // What to compute: names are declared first, and each call binds them.
  const attune_name captures[] = {{.name = "slope", .kind = 'f', .rank = 1}};
  const attune_what what = {.size = sizeof what,
                            .score = {.text = "30.0f * tanh((s + slope[h] * f32(kv - q)) / 30.0f)"},
                            .mask = {.text = "kv <= q"},
                            .captures = captures,
                            .n_captures = 1};
  attune_attention* attention = NULL;
  check(attune_new(&what, &attention));

  // A call: memory of yours. The first one compiles, later ones only run, on any thread.
  int64_t shape[] = {1, heads, n, d}, of_slope[] = {heads};
  const attune_tensor tq = tensor(q, 4, shape), tk = tensor(k, 4, shape), tv = tensor(v, 4, shape),
                      to = tensor(o, 4, shape), tslope = tensor(slope, 1, of_slope);
  const attune_tensor* bound[] = {&tslope};
  const attune_call call = {
      .size = sizeof call, .q = &tq, .k = &tk, .v = &tv, .o = &to, .captures = bound, .n_captures = 1};
  check(attune_run(attention, &call, NULL));
  attune_free(attention);
  // [call]

  // The first query sees the first key alone: its output is its value.
  int right = 1;
  for (int h = 0; h < heads; ++h)
    for (int x = 0; x < d; ++x) right &= o[h * n * d + x] == v[h * n * d + x];

  // A mistake is a value, with its place in the text.
  attune_what wrong = what;
  wrong.mask.text = "kv <= w";
  attune_error* error = attune_new(&wrong, &attention);
  attune_said said = {.size = sizeof said};
  if (error) attune_error_read(error, &said);
  right &= error && said.begin == 6 && said.end == 7;
  attune_error_free(error);
  puts(right ? "ok" : "wrong");
  return !right;
}
