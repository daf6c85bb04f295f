// tests/c/examples.c — what each program of examples/ computes, from C99
#include "tests/c/examples.h"

#include <stdlib.h>
#include <string.h>

static attune_what what_of(const char* score, const char* mask) {
  attune_what what;
  memset(&what, 0, sizeof what);
  what.size = sizeof what;
  what.score.text = score;
  what.mask.text = mask;
  return what;
}

static attune_error* run(const attune_what* what, const attune_call* call) {
  attune_attention* attention = NULL;
  attune_error* error = attune_new(what, &attention);
  if (!error) error = attune_run(attention, call, NULL);
  attune_free(attention);
  return error;
}

attune_error* c_01_plain(const attune_call* call) {
  const attune_what what = what_of(NULL, NULL);
  return run(&what, call);
}

attune_error* c_02_causal(const attune_call* call) {
  const attune_what what = what_of(NULL, "kv <= q");
  return run(&what, call);
}

attune_error* c_03_alibi(const attune_call* call) {
  static const attune_name captures[] = {{"slope", 'f', 1}, {"doc", 'i', 1}};
  static const attune_let lets[] = {{"alibi", {"s + slope[h] * f32(kv - q)", NULL, 0}}};
  attune_what what = what_of("30.0f * tanh(alibi / 30.0f)", "kv <= q && doc[q] == doc[kv]");
  what.captures = captures;
  what.n_captures = 2;
  what.lets = lets;
  what.n_lets = 1;
  return run(&what, call);
}

attune_error* c_04_documents_packed(const attune_call* call) {
  const attune_what what = what_of("5.0f * tanh(s / 5.0f)", "kv <= q");
  return run(&what, call);
}

attune_error* c_04_documents_masked(const attune_call* call) {
  static const attune_name doc = {"doc", 'i', 1};
  attune_what what = what_of("5.0f * tanh(s / 5.0f)", "kv <= q && doc[q] == doc[kv]");
  what.captures = &doc;
  what.n_captures = 1;
  return run(&what, call);
}

attune_error* c_05_bias_gradient(const attune_call* call) {
  static const attune_name table = {"table", 'f', 2};
  attune_what what = what_of("s + table[h, q - kv + 16]", NULL);
  what.captures = &table;
  what.n_captures = 1;
  return run(&what, call);
}

attune_error* c_06_text(const attune_call* call) {
  static const attune_name slope = {"slope", 'f', 1}, cap = {"cap", 'f', 0};
  static const attune_let lets[] = {{"distance", {"f32(kv - q)", NULL, 0}}};
  static const double thirty = 30;
  attune_what what = what_of("cap * tanh((s + slope[h] * distance) / cap)", "kv <= q && q - kv < 12");
  what.captures = &slope;
  what.params = &cap;
  what.lets = lets;
  what.n_captures = what.n_params = what.n_lets = 1;
  attune_call bound = *call;
  bound.params = &thirty;
  bound.n_params = 1;
  return run(&what, &bound);
}

attune_error* c_07_sink(const attune_call* call) {
  static const attune_name logit = {"logit", 'f', 1};
  attune_what what = what_of(NULL, NULL);
  what.sink.text = "logit[h]";
  what.captures = &logit;
  what.n_captures = 1;
  return run(&what, call);
}

attune_error* c_07_dropout(const attune_call* call, int seed) {
  static const attune_name name = {"seed", 'i', 0};
  attune_what what = what_of(NULL, NULL);
  what.prob.text = "dropout(0.75, seed)";
  what.params = &name;
  what.n_params = 1;
  const double number = seed;
  attune_call bound = *call;
  bound.params = &number;
  bound.n_params = 1;
  return run(&what, &bound);
}

attune_error* c_08_sum(const attune_call* call) {
  static const attune_name captures[] = {{"u", 'f', 2}, {"w", 'f', 2}};
  static const double one = 1;
  attune_what what = what_of("s + sum(i, 2, u[q, i] * w[kv, i])", NULL);
  what.captures = captures;
  what.n_captures = 2;
  what.scale = &one;
  return run(&what, call);
}

// Some positions of a tensor of f32 [1, H, n, D].
typedef struct {
  attune_tensor t;
  int64_t shape[4], strides[4];
} positions;

static const attune_tensor* part(positions* out, const attune_tensor* whole, int64_t first, int64_t count) {
  out->t = *whole;
  for (int i = 0; i < 4; ++i) out->shape[i] = whole->shape[i];
  out->shape[2] = count;
  const int64_t n = whole->shape[2], d = whole->shape[3];
  const int64_t strides[4] = {0, n * d, d, 1};
  memcpy(out->strides, strides, sizeof strides);
  out->t.shape = out->shape;
  out->t.strides = out->strides;
  out->t.byte_offset = (uint64_t)(first * d) * sizeof(float);
  return &out->t;
}

typedef struct {
  attune_call call;
  positions q, k, v, o;
} decode_step;

static void set_step(decode_step* step, const attune_call* whole, int64_t i) {
  step->call = *whole;
  step->call.q = part(&step->q, whole->q, i, 1);
  step->call.k = part(&step->k, whole->k, 0, i + 1);
  step->call.v = part(&step->v, whole->v, 0, i + 1);
  step->call.o = part(&step->o, whole->o, i, 1);
  step->call.q_offset = (int32_t)i;
}

static void alternate(void* user, int64_t count, attune_task task, void* run) {
  (void)user;
  for (int32_t worker = 1; worker >= 0; --worker)
    for (int64_t i = worker; i < count; i += 2) task(run, i, worker);
}

attune_error* c_09_decode(const attune_call* call) {
  const attune_what what = what_of(NULL, "kv <= q && q - kv < 64");
  attune_attention* attention = NULL;
  attune_error* error = attune_new(&what, &attention);
  if (error) return error;
  attune_with with;
  memset(&with, 0, sizeof with);
  with.size = sizeof with;
  with.workers = 2;
  with.parallel_for = alternate;
  const int64_t n = call->q->shape[2];
  decode_step step;
  set_step(&step, call, n - 1);
  void* memory = NULL;
  error = attune_prepare(attention, &step.call, &with, &with.workspace_bytes, NULL);
  if (!error) {
    memory = malloc(with.workspace_bytes + 64);
    with.workspace = (char*)memory + (64 - (uintptr_t)memory % 64) % 64;
  }
  for (int64_t i = 0; i < n && !error; ++i) {
    set_step(&step, call, i);
    error = attune_run(attention, &step.call, &with);
  }
  free(memory);
  attune_free(attention);
  return error;
}

typedef struct {
  int built, called;
} counts;

static void count(void* user, const char* json) {
  counts* seen = user;
  seen->built += strstr(json, "{\"fact\":\"built\"") && !strstr(json, "\"mod\":\"\"");
  seen->called += strstr(json, "{\"fact\":\"called\"") != NULL;
}

attune_error* c_10_watch(const attune_call* call, int* built, int* called) {
  counts seen = {0, 0};
  attune_watch* watch = NULL;
  attune_error* error = attune_watch_on(count, &seen, &watch);
  if (!error) error = c_02_causal(call);
  attune_watch_off(watch);
  if (!error) error = c_02_causal(call);
  *built = seen.built;
  *called = seen.called;
  return error;
}

attune_error* c_11_cover(const attune_call* calls, int n) {
  static const attune_name doc = {"doc", 'i', 1};
  attune_what what = what_of(NULL, "kv <= q && doc[q] == doc[kv]");
  what.captures = &doc;
  what.n_captures = 1;
  attune_attention* attention = NULL;
  attune_cover* cover = NULL;
  attune_error* error = attune_new(&what, &attention);
  if (!error) error = attune_cover_new(attention, &calls[0], NULL, &cover);
  attune_with with;
  memset(&with, 0, sizeof with);
  with.size = sizeof with;
  with.cover = cover;
  for (int i = 0; i < n && !error; ++i) error = attune_run(attention, &calls[i], &with);
  attune_cover_free(cover);
  attune_free(attention);
  return error;
}

attune_error* c_12_packed(const attune_call* call) {
  const attune_what what = what_of("30.0f * tanh(s / 30.0f)", "kv <= q");
  return run(&what, call);
}

attune_error* c_13_training(const attune_call* call) {
  static const attune_name table = {"table", 'f', 2};
  attune_what what = what_of("20.0f * tanh(s / 20.0f) + table[h, q - kv + 16]", "kv <= q");
  what.captures = &table;
  what.n_captures = 1;
  return run(&what, call);
}
