// tests/c/all.c — every function of attune/c.h, from C99: values, lifetimes, threads, memory, bad input
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/c/call.h"

enum { heads = 4, kv_heads = 2, n = 48, d = 16 };

// One call: q, k, v of normal random numbers, o, and a slope for each head.
typedef struct {
  float *q, *k, *v, *o, *slope;
  tensor *tq, *tk, *tv, *to, *tslope;
  const attune_tensor* captures[1];
  attune_call call;
} problem;

static problem* problem_of(unsigned seed, int64_t length) {
  problem* p = calloc(1, sizeof *p);
  p->q = normals((size_t)(heads * length * d), seed);
  p->k = normals((size_t)(kv_heads * length * d), seed + 1);
  p->v = normals((size_t)(kv_heads * length * d), seed + 2);
  p->o = calloc((size_t)(heads * length * d), sizeof(float));
  p->slope = normals(heads, seed + 3);
  p->tq = floats(p->q, 4, 1, heads, length, d);
  p->tk = floats(p->k, 4, 1, kv_heads, length, d);
  p->tv = floats(p->v, 4, 1, kv_heads, length, d);
  p->to = floats(p->o, 4, 1, heads, length, d);
  p->tslope = floats(p->slope, 1, heads, 0, 0, 0);
  p->captures[0] = &p->tslope->t;
  p->call.size = sizeof p->call;
  p->call.q = &p->tq->t;
  p->call.k = &p->tk->t;
  p->call.v = &p->tv->t;
  p->call.o = &p->to->t;
  p->call.captures = p->captures;
  p->call.n_captures = 1;
  return p;
}
static void drop(problem* p) {
  void* all[] = {p->q, p->k, p->v, p->o, p->slope, p->tq, p->tk, p->tv, p->to, p->tslope, p};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
}

static const attune_name slope_name = {"slope", 'f', 1};
static attune_what alibi_what(void) {
  attune_what what;
  memset(&what, 0, sizeof what);
  what.size = sizeof what;
  what.score.text = "s + slope[h] * f32(kv - q)";
  what.mask.text = "kv <= q";
  what.captures = &slope_name;
  what.n_captures = 1;
  return what;
}
static attune_attention* made(const attune_what* what) {
  attune_attention* out = NULL;
  GOOD(attune_new(what, &out));
  return out;
}
static attune_attention* alibi(void) {
  const attune_what what = alibi_what();
  return made(&what);
}

// The greatest distance from plain loops.
static double error_of(const problem* p, int length) {
  double worst = 0;
  for (int h = 0; h < heads; ++h)
    for (int i = 0; i < length; ++i) {
      double sum = 0, row[d] = {0};
      for (int j = 0; j <= i; ++j) {
        double s = 0;
        for (int x = 0; x < d; ++x)
          s += (double)p->q[(h * length + i) * d + x] * (double)p->k[(h / 2 * length + j) * d + x] / sqrt(d);
        const double e = exp(s + (double)p->slope[h] * (j - i));
        sum += e;
        for (int x = 0; x < d; ++x) row[x] += e * (double)p->v[(h / 2 * length + j) * d + x];
      }
      for (int x = 0; x < d; ++x) worst = fmax(worst, fabs(row[x] / sum - (double)p->o[(h * length + i) * d + x]));
    }
  return worst;
}

static void values(void) {
  CHECK(attune_version() == ATTUNE_VERSION);
  problem* p = problem_of(1, n);
  CHECK(attune_worthwhile_workers(&p->call) == 1);
  attune_attention* a = alibi();
  GOOD(attune_run(a, &p->call, NULL));
  CHECK(error_of(p, n) < 1e-5);
  // A second set of tensors, the same attention.
  problem* other = problem_of(7, 33);
  GOOD(attune_run(a, &other->call, NULL));
  CHECK(error_of(other, 33) < 1e-5);
  attune_free(a);
  drop(p);
  drop(other);
}

static void gradients(void) {
  problem* p = problem_of(11, n);
  attune_attention* a = alibi();
  float *grad = normals(heads * n * d, 5), *dq = calloc(heads * n * d, 4), *dslope = calloc(heads, 4);
  tensor *tgrad = floats(grad, 4, 1, heads, n, d), *tdq = floats(dq, 4, 1, heads, n, d),
         *tdslope = floats(dslope, 1, heads, 0, 0, 0);
  const attune_tensor* grads[1] = {&tdslope->t};
  attune_call back = p->call;
  back.pass = ATTUNE_BACKWARD;
  back.o = NULL;
  back.grad_o = &tgrad->t;
  back.dq = &tdq->t;
  back.captured_grads = grads;
  back.n_captured_grads = 1;
  GOOD(attune_run(a, &back, NULL));
  // Against a difference, by head.
  for (int h = 0; h < heads; ++h) {
    double loss[2] = {0, 0};
    for (int side = 0; side < 2; ++side) {
      const float before = p->slope[h];
      p->slope[h] += side ? 0.01f : -0.01f;
      GOOD(attune_run(a, &p->call, NULL));
      p->slope[h] = before;
      for (int i = 0; i < heads * n * d; ++i) loss[side] += (double)p->o[i] * (double)grad[i];
    }
    const double seen = (loss[1] - loss[0]) / 0.02;
    CHECK(fabs(seen - (double)dslope[h]) < 0.02 * (1 + fabs(seen)));
  }
  size_t workspace = 0, cover = 7;
  GOOD(attune_prepare_async(a, &back));
  attune_wait();
  GOOD(attune_prepare_async(a, &back));
  attune_cancel();
  GOOD(attune_prepare(a, &back, NULL, &workspace, &cover));
  CHECK(workspace > 0 && cover == 0);
  back.n_captured_grads = 2;
  REFUSED(attune_run(a, &back, NULL), "bind-count");
  attune_free(a);
  void* all[] = {grad, dq, dslope, tgrad, tdq, tdslope};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
  drop(p);
}

// A paged KV cache, filled by attune_append, of which a call reads the beginning, against one call with dense keys
// and values.
static void caches(void) {
  enum { page = 8, pages = 10, used = 41 };
  problem* p = problem_of(21, n);
  float *k = calloc(pages * kv_heads * page * d, 4), *v = calloc(pages * kv_heads * page * d, 4),
        *o = calloc(heads * d, 4), *lse = calloc(heads, 4);
  tensor *tk = floats(k, 4, pages, kv_heads, page, d), *tv = floats(v, 4, pages, kv_heads, page, d),
         *to = floats(o, 4, 1, heads, 1, d), *tlse = floats(lse, 3, 1, heads, 1, 0);
  int32_t order[] = {4, 0, 9, 3, 7, 1}, length = used, first = used - 1;
  tensor *table = of(order, ATTUNE_INT, 32, 2, 1, 6, 0, 0), *lengths = of(&length, ATTUNE_INT, 32, 1, 1, 0, 0, 0),
         *offsets = of(&first, ATTUNE_INT, 32, 1, 1, 0, 0, 0);
  attune_new_keys keys;
  memset(&keys, 0, sizeof keys);
  keys.size = sizeof keys;
  p->tk->shape[2] = p->tv->shape[2] = used;
  const int64_t strides[4] = {kv_heads * n * d, n * d, d, 1};
  memcpy(p->tk->strides, strides, sizeof strides);
  memcpy(p->tv->strides, strides, sizeof strides);
  p->tk->t.strides = p->tk->strides;
  p->tv->t.strides = p->tv->strides;
  keys.k_new = &p->tk->t;
  keys.v_new = &p->tv->t;
  keys.k = &tk->t;
  keys.v = &tv->t;
  keys.page_table = &table->t;
  keys.kv_len = &lengths->t;
  GOOD(attune_append(&keys, NULL));

  attune_attention* a = alibi();
  attune_call call = p->call;
  p->tq->shape[2] = p->to->shape[2] = 1;  // the first query of each head, as the last of the sequence
  const int64_t of_q[4] = {heads * n * d, n * d, d, 1};
  memcpy(p->tq->strides, of_q, sizeof of_q);
  memcpy(p->to->strides, of_q, sizeof of_q);
  p->tq->t.strides = p->tq->strides;
  p->to->t.strides = p->to->strides;
  call.q_offset = used - 1;
  GOOD(attune_run(a, &call, NULL));
  call.k = &tk->t;
  call.v = &tv->t;
  call.page_table = &table->t;
  call.kv_len = &lengths->t;
  call.q_offset = 0;
  call.q_offsets = &offsets->t;
  call.fixed_split_size = 128;
  call.o = &to->t;
  call.lse = &tlse->t;
  GOOD(attune_run(a, &call, NULL));
  for (int h = 0; h < heads; ++h)
    for (int x = 0; x < d; ++x) CHECK(o[h * d + x] == p->o[h * n * d + x]);
  // Merged with itself: the same output, and twice the sum.
  float before[heads];
  memcpy(before, lse, sizeof before);
  call.o_before = &to->t;
  call.lse_before = &tlse->t;
  GOOD(attune_run(a, &call, NULL));
  for (int h = 0; h < heads; ++h) CHECK(fabs(lse[h] - before[h] - log(2)) < 1e-5 * (1 + fabs(lse[h])));

  // A page that a query needs and that is not there.
  order[2] = pages;
  REFUSED(attune_run(a, &call, NULL), "page-table");
  order[2] = 9;

  // The same rows by their slots, after one that is left out: the pools have what they had.
  float *by_slot_k = calloc(pages * kv_heads * page * d, 4), *by_slot_v = calloc(pages * kv_heads * page * d, 4),
        *rows_k = calloc((used + 1) * kv_heads * d, 4), *rows_v = calloc((used + 1) * kv_heads * d, 4);
  int64_t where[used + 1] = {-1};
  for (int i = 0; i < used; ++i) {
    where[i + 1] = order[i / page] * page + i % page;
    for (int h = 0; h < kv_heads; ++h)
      for (int x = 0; x < d; ++x) {
        rows_k[((i + 1) * kv_heads + h) * d + x] = p->k[(h * n + i) * d + x];
        rows_v[((i + 1) * kv_heads + h) * d + x] = p->v[(h * n + i) * d + x];
      }
  }
  tensor *slots = of(where, ATTUNE_INT, 64, 1, used + 1, 0, 0, 0), *nk = floats(rows_k, 3, used + 1, kv_heads, d, 0),
         *nv = floats(rows_v, 3, used + 1, kv_heads, d, 0), *sk = floats(by_slot_k, 4, pages, kv_heads, page, d),
         *sv = floats(by_slot_v, 4, pages, kv_heads, page, d);
  attune_new_keys at_slots;
  memset(&at_slots, 0, sizeof at_slots);
  at_slots.size = sizeof at_slots;
  at_slots.k_new = &nk->t;
  at_slots.v_new = &nv->t;
  at_slots.k = &sk->t;
  at_slots.v = &sv->t;
  at_slots.slots = &slots->t;
  GOOD(attune_append(&at_slots, NULL));
  CHECK(memcmp(by_slot_k, k, pages * kv_heads * page * d * sizeof *k) == 0);
  CHECK(memcmp(by_slot_v, v, pages * kv_heads * page * d * sizeof *v) == 0);
  where[3] = pages * page;
  REFUSED(attune_append(&at_slots, NULL), "slots");
  at_slots.kv_len = &lengths->t;
  REFUSED(attune_append(&at_slots, NULL), "slots");
  // A program built before the struct had slots.
  keys.size = (uint32_t)(offsetof(attune_new_keys, v_scale) + sizeof keys.v_scale);
  keys.slots = &slots->t;
  GOOD(attune_append(&keys, NULL));

  REFUSED(attune_append(NULL, NULL), "null-pointer");
  keys.size = 8;
  REFUSED(attune_append(&keys, NULL), "struct-size");
  call.kv_offset = -1;
  REFUSED(attune_run(a, &call, NULL), "kv-offset");
  call.pass = ATTUNE_BACKWARD;
  REFUSED(attune_run(a, &call, NULL), "forward-only");
  // A program built with the first version of the struct.
  call = p->call;
  call.size = (uint32_t)(offsetof(attune_call, n_params) + sizeof call.n_params);
  call.q_offset = used - 1;
  GOOD(attune_run(a, &call, NULL));
  attune_free(a);
  void* all[] = {k,       v,         o,         lse,    tk,     tv,    to, tlse, table, lengths,
                 offsets, by_slot_k, by_slot_v, rows_k, rows_v, slots, nk, nv,   sk,    sv};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
  drop(p);
}

// Ranks are threads; they exchange bytes through a table of what each rank sends.
enum { ranks = 3 };
typedef struct {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  const attune_chunk* sent[ranks];
  size_t counts[ranks], taken[ranks][ranks];
  int here, round, failing, stopped;
} hub;
typedef struct {
  hub* hub;
  int rank, sums;
  const problem* whole;
  attune_tensor* grad;
  double worst;
  float dslope[heads];
} seat;

static void all_here(hub* h) {
  const int round = h->round;
  if (++h->here == ranks) {
    h->here = 0;
    ++h->round;
    pthread_cond_broadcast(&h->changed);
  }
  while (h->round == round) pthread_cond_wait(&h->changed, &h->mutex);
}
static int32_t exchange(void* user, const attune_chunk* send, size_t n_send, const attune_chunk* receive,
                        size_t n_receive, void* stream) {
  seat* s = user;
  hub* h = s->hub;
  int32_t wrong = stream != NULL;
  pthread_mutex_lock(&h->mutex);
  h->sent[s->rank] = send;
  h->counts[s->rank] = n_send;
  all_here(h);
  size_t next[ranks] = {0};
  for (size_t i = 0; i < n_receive; ++i) {
    const int from = receive[i].peer;
    while (next[from] < h->counts[from] && h->sent[from][next[from]].peer != s->rank) ++next[from];
    if (next[from] == h->counts[from] || h->sent[from][next[from]].bytes != receive[i].bytes) {
      wrong = 1;
      break;
    }
    memcpy(receive[i].data, h->sent[from][next[from]++].data, receive[i].bytes);
  }
  all_here(h);
  wrong |= h->failing;
  pthread_mutex_unlock(&h->mutex);
  return wrong;
}
static void stop(void* user) {
  seat* s = user;
  pthread_mutex_lock(&s->hub->mutex);
  ++s->hub->stopped;
  pthread_mutex_unlock(&s->hub->mutex);
}
static attune_transport transport_of(seat* s) {
  attune_transport t;
  memset(&t, 0, sizeof t);
  t.size = sizeof t;
  t.rank = s->rank;
  t.count = ranks;
  t.user = s;
  t.exchange = exchange;
  t.stop = stop;
  return t;
}
enum { long_n = 1000 };
// This rank's rows of [1, h, long_n, d], or back.
static void rows_of(float* whole, float* mine, int h, const attune_range* held, size_t count, int back) {
  for (int head = 0; head < h; ++head)
    for (size_t i = 0; i < count; ++i) {
      const size_t size = (size_t)(held[i].end - held[i].begin) * d;
      float* there = whole + (head * long_n + held[i].begin) * d;
      back ? memcpy(there, mine, size * sizeof *mine) : memcpy(mine, there, size * sizeof *mine);
      mine += size;
    }
}
static void* one_rank(void* user) {
  seat* s = user;
  const problem* w = s->whole;
  attune_attention* a = alibi();
  const attune_attention* attentions[1] = {a};
  attune_call whole = w->call;
  const attune_call* calls[1] = {&whole};
  attune_sharding *sharding = NULL, *again = NULL;
  const attune_transport transport = transport_of(s);
  attune_how how;
  memset(&how, 0, sizeof how);
  how.size = sizeof how;
  how.assignment = ATTUNE_ZIGZAG;
  how.block = 96;
  GOOD(attune_sharding_new(attentions, calls, 1, &transport, &how, NULL, &sharding));
  GOOD(attune_sharding_new(attentions, calls, 1, NULL, NULL, sharding, &again));
  attune_sharding_free(sharding);  // what was made of it keeps what it needs
  attune_range held[8];
  size_t count = 0, n_positions = 0, bytes = 0;
  GOOD(attune_sharding_of(again, s->rank, 1, held, 8, &count));
  int64_t mine = 0;
  for (size_t i = 0; i < count; ++i) mine += held[i].end - held[i].begin;
  int32_t* positions = calloc(long_n, sizeof *positions);
  GOOD(attune_sharding_positions(again, s->rank, positions, long_n, &n_positions));
  CHECK((int64_t)n_positions == mine && positions[0] == held[0].begin);
  GOOD(attune_sharding_received(again, s->rank, 0, &bytes));
  CHECK(bytes > 0);
  float *q = calloc(heads * long_n * d, 4), *k = calloc(kv_heads * long_n * d, 4),
        *v = calloc(kv_heads * long_n * d, 4), *o = calloc(heads * long_n * d, 4);
  rows_of(w->q, q, heads, held, count, 0);
  rows_of(w->k, k, kv_heads, held, count, 0);
  rows_of(w->v, v, kv_heads, held, count, 0);
  tensor *tq = floats(q, 4, 1, heads, mine, d), *tk = floats(k, 4, 1, kv_heads, mine, d),
         *tv = floats(v, 4, 1, kv_heads, mine, d), *to = floats(o, 4, 1, heads, mine, d),
         *tdslope = floats(s->dslope, 1, heads, 0, 0, 0);
  attune_call call = w->call;
  call.q = &tq->t;
  call.k = &tk->t;
  call.v = &tv->t;
  call.o = &to->t;
  attune_with with;
  memset(&with, 0, sizeof with);
  with.size = sizeof with;
  with.workers = 1;
  with.sharding = again;
  GOOD(attune_run(a, &call, &with));
  rows_of(w->o, o, heads, held, count, 1);
  // The gradient of the slopes for a gradient of o itself, summed over the ranks.
  const attune_tensor* grads[1] = {&tdslope->t};
  attune_call back = call;
  back.pass = ATTUNE_BACKWARD;
  back.o = NULL;
  back.grad_o = &to->t;
  back.captured_grads = grads;
  back.n_captured_grads = 1;
  GOOD(attune_run(a, &back, &with));
  // A transport that fails ends the call on every rank.
  pthread_mutex_lock(&s->hub->mutex);
  all_here(s->hub);
  s->hub->failing = 1;
  pthread_mutex_unlock(&s->hub->mutex);
  REFUSED(attune_run(a, &call, &with), "ranks-transport");
  attune_sharding_free(again);
  attune_free(a);
  void* all[] = {positions, q, k, v, o, tq, tk, tv, to, tdslope};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
  return NULL;
}

static void over_ranks(void) {
  problem* p = problem_of(31, long_n);
  hub h;
  memset(&h, 0, sizeof h);
  pthread_mutex_init(&h.mutex, NULL);
  pthread_cond_init(&h.changed, NULL);
  seat seats[ranks];
  pthread_t running[ranks];
  memset(seats, 0, sizeof seats);
  for (int i = 0; i < ranks; ++i) {
    seats[i].hub = &h;
    seats[i].rank = i;
    seats[i].whole = p;
    pthread_create(&running[i], NULL, one_rank, &seats[i]);
  }
  for (int i = 0; i < ranks; ++i) pthread_join(running[i], NULL);
  CHECK(h.stopped == ranks);
  // The same on one rank.
  problem* alone = problem_of(31, long_n);
  attune_attention* a = alibi();
  GOOD(attune_run(a, &alone->call, NULL));
  CHECK(memcmp(alone->o, p->o, heads * long_n * d * sizeof(float)) == 0);
  float dslope[heads];
  tensor* tdslope = floats(dslope, 1, heads, 0, 0, 0);
  const attune_tensor* grads[1] = {&tdslope->t};
  attune_call back = alone->call;
  back.pass = ATTUNE_BACKWARD;
  back.o = NULL;
  back.grad_o = &alone->to->t;
  back.captured_grads = grads;
  back.n_captured_grads = 1;
  GOOD(attune_run(a, &back, NULL));
  for (int i = 0; i < ranks; ++i)
    for (int j = 0; j < heads; ++j)
      CHECK(fabs((double)(seats[i].dslope[j] - dslope[j])) < 1e-4 * (1 + fabs((double)dslope[j])));

  // Planning alone, and mistakes.
  const attune_attention* attentions[1] = {a};
  const attune_call* calls[1] = {&alone->call};
  attune_transport planning = transport_of(&seats[0]);
  planning.exchange = NULL;
  attune_sharding* sharding = NULL;
  attune_how how;
  memset(&how, 0, sizeof how);
  how.size = sizeof how;
  how.assignment = 4;
  REFUSED(attune_sharding_new(attentions, calls, 1, &planning, &how, NULL, &sharding), "bad-choice");
  how.assignment = 0;
  how.groups = -1;
  REFUSED(attune_sharding_new(attentions, calls, 1, &planning, &how, NULL, &sharding), "sharding-how");
  REFUSED(attune_sharding_new(attentions, calls, 0, &planning, NULL, NULL, &sharding), "sharding-call");
  REFUSED(attune_sharding_new(attentions, calls, 1, NULL, NULL, NULL, &sharding), "null-pointer");
  REFUSED(attune_sharding_new(NULL, calls, 1, &planning, NULL, NULL, &sharding), "null-pointer");
  REFUSED(attune_sharding_new(attentions, calls, 1, &planning, NULL, NULL, NULL), "null-pointer");
  calls[0] = &back;
  REFUSED(attune_sharding_new(attentions, calls, 1, &planning, NULL, NULL, &sharding), "bad-choice");
  calls[0] = &alone->call;
  const int32_t planned = planning.count;
  planning.count = 100000;
  REFUSED(attune_sharding_new(attentions, calls, 1, &planning, NULL, NULL, &sharding), "ranks-count");
  planning.count = planned;
  planning.size = 8;
  REFUSED(attune_sharding_new(attentions, calls, 1, &planning, NULL, NULL, &sharding), "struct-size");
  planning.size = sizeof planning;
  CHECK(!sharding);
  GOOD(attune_sharding_new(attentions, calls, 1, &planning, NULL, NULL, &sharding));
  attune_sharding* other = NULL;
  REFUSED(attune_sharding_new(attentions, calls, 1, &planning, NULL, sharding, &other), "bad-choice");
  char* text = NULL;
  GOOD(attune_sharding_explain(sharding, &text));
  CHECK(strstr(text, "3 ranks") != NULL);
  // NCCL: refusals in a process without it. tests/driver and tests/python exchange by NCCL.
  attune_nccl nccl;
  memset(&nccl, 0, sizeof nccl);
  nccl.size = sizeof nccl;
  attune_transport none;
  memset(&none, 0, sizeof none);
  REFUSED(attune_nccl_new(&nccl, &none), "struct-size");
  none.size = sizeof none;
  REFUSED(attune_nccl_new(&nccl, &none), "bad-choice");
  REFUSED(attune_nccl_new(NULL, &none), "null-pointer");
  REFUSED(attune_nccl_new(&nccl, NULL), "null-pointer");
  const char id[ATTUNE_NCCL_ID] = {0};
  nccl.id = id;
  nccl.rank = nccl.count = 2;
  REFUSED(attune_nccl_new(&nccl, &none), "ranks-count");
  CHECK(!none.exchange && !none.user);
  REFUSED(attune_nccl_id(NULL), "null-pointer");
  attune_nccl_free(&none);
  attune_nccl_free(&planning);
  attune_nccl_free(NULL);
  attune_string_free(text);
  size_t count = 0;
  GOOD(attune_sharding_of(sharding, 0, 0, NULL, 0, &count));
  CHECK(count > 0);
  REFUSED(attune_sharding_of(sharding, 3, 0, NULL, 0, &count), "ranks-count");
  REFUSED(attune_sharding_of(NULL, 0, 0, NULL, 0, &count), "null-pointer");
  REFUSED(attune_sharding_of(sharding, 0, 9, NULL, 0, &count), "bad-choice");
  REFUSED(attune_sharding_positions(NULL, 0, NULL, 0, &count), "null-pointer");
  REFUSED(attune_sharding_received(sharding, 0, 0, NULL), "null-pointer");
  REFUSED(attune_sharding_received(sharding, 0, 1, &count), "ranks-count");
  REFUSED(attune_sharding_explain(sharding, NULL), "null-pointer");
  attune_with with;
  memset(&with, 0, sizeof with);
  with.size = sizeof with;
  with.sharding = sharding;
  REFUSED(attune_run(a, &alone->call, &with), "sharding-shape");
  attune_sharding_free(sharding);
  attune_sharding_free(NULL);
  attune_free(a);
  free(tdslope);
  pthread_mutex_destroy(&h.mutex);
  pthread_cond_destroy(&h.changed);
  drop(alone);
  drop(p);
}

static void null_pointers(void) {
  problem* p = problem_of(1, n);
  attune_attention* a = alibi();
  const attune_what what = alibi_what();
  attune_picture picture;
  memset(&picture, 0, sizeof picture);
  attune_attention* none = NULL;
  attune_watch* watch = NULL;
  attune_tensor* memory = NULL;
  attune_job job;
  memset(&job, 0, sizeof job);
  job.size = sizeof job;
  char* text = NULL;
  REFUSED(attune_option(NULL, "1"), "null-pointer");
  REFUSED(attune_machine(NULL), "null-pointer");
  REFUSED(attune_new(NULL, &none), "null-pointer");
  REFUSED(attune_new(&what, NULL), "null-pointer");
  REFUSED(attune_explain(NULL, &text), "null-pointer");
  REFUSED(attune_explain(a, NULL), "null-pointer");
  REFUSED(attune_describe(NULL, &text), "null-pointer");
  REFUSED(attune_describe(a, NULL), "null-pointer");
  REFUSED(attune_run(NULL, &p->call, NULL), "null-pointer");
  REFUSED(attune_run(a, NULL, NULL), "null-pointer");
  REFUSED(attune_prepare(NULL, &p->call, NULL, NULL, NULL), "null-pointer");
  REFUSED(attune_prepare(a, NULL, NULL, NULL, NULL), "null-pointer");
  REFUSED(attune_prepare_async(NULL, &p->call), "null-pointer");
  REFUSED(attune_prepare_async(a, NULL), "null-pointer");
  REFUSED(attune_cover_new(NULL, &p->call, NULL, NULL), "null-pointer");
  REFUSED(attune_cover_new(a, &p->call, NULL, NULL), "null-pointer");
  REFUSED(attune_tiles(NULL, &picture, NULL, 0, NULL, NULL), "null-pointer");
  REFUSED(attune_tiles(a, NULL, NULL, 0, NULL, NULL), "null-pointer");
  attune_drawing drawing;
  memset(&drawing, 0, sizeof drawing);
  drawing.size = sizeof drawing;
  REFUSED(attune_draw(NULL, &drawing, &text), "null-pointer");
  REFUSED(attune_draw(a, NULL, &text), "null-pointer");
  REFUSED(attune_draw(a, &drawing, NULL), "null-pointer");
  REFUSED(attune_draw(a, &drawing, &text), "null-pointer");
  REFUSED(attune_load(NULL), "null-pointer");
  REFUSED(attune_load_bytes(NULL, 4), "null-pointer");
  REFUSED(attune_compile(NULL, &text), "null-pointer");
  REFUSED(attune_compile(&job, &text), "null-pointer");
  REFUSED(attune_watch_on(NULL, NULL, &watch), "null-pointer");
  REFUSED(attune_watch_facts(NULL, NULL, NULL, &watch), "null-pointer");
  REFUSED(attune_watch_facts("built", NULL, NULL, &watch), "null-pointer");
  REFUSED(attune_alloc(NULL, &memory), "null-pointer");
  REFUSED(attune_alloc(&p->tq->t, NULL), "null-pointer");
  REFUSED(attune_copy(NULL, &p->tq->t, NULL), "null-pointer");
  REFUSED(attune_copy(&p->tq->t, NULL, NULL), "null-pointer");
  attune_what lacks = what;
  lacks.captures = NULL;
  REFUSED(attune_new(&lacks, &none), "null-pointer");
  attune_call call = p->call;
  call.captures = NULL;
  REFUSED(attune_run(a, &call, NULL), "null-pointer");
  CHECK(!none && !watch && !memory && !text);
  // Freeing null is always allowed.
  attune_free(NULL);
  attune_error_free(NULL);
  attune_cover_free(NULL);
  attune_watch_off(NULL);
  attune_dealloc(NULL);
  attune_string_free(NULL);
  attune_error_read(NULL, NULL);
  attune_free(a);
  drop(p);
}

static void sizes(void) {
  problem* p = problem_of(1, n);
  attune_attention *a = alibi(), *none = NULL;
  attune_what what = alibi_what();
  const uint32_t wrong[] = {0, 1, 7, sizeof what - 1, 5000, UINT32_MAX};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    what.size = wrong[i];
    REFUSED(attune_new(&what, &none), "struct-size");
    attune_call call = p->call;
    // Smaller than the first version of the struct.
    call.size = wrong[i] == sizeof what - 1 ? (uint32_t)offsetof(attune_call, kv_len) - 1 : wrong[i];
    REFUSED(attune_run(a, &call, NULL), "struct-size");
    attune_with with;
    memset(&with, 0, sizeof with);
    with.size = wrong[i] == sizeof what - 1 ? (uint32_t)offsetof(attune_with, sharding) - 1 : wrong[i];
    REFUSED(attune_run(a, &p->call, &with), "struct-size");
  }
  // A program with a later header: unknown members that are 0 are ignored, others are refused.
  struct {
    attune_what what;
    int64_t later;
  } newer = {alibi_what(), 0};
  newer.what.size = sizeof newer;
  GOOD(attune_new(&newer.what, &none));
  attune_free(none);
  none = NULL;
  newer.later = 1;
  REFUSED(attune_new(&newer.what, &none), "struct-size");
  CHECK(!none);
  // Reading an error writes no more than the given size.
  what.size = 1;
  attune_error* error = attune_new(&what, &none);
  attune_said said;
  memset(&said, 0x55, sizeof said);
  said.size = (uint32_t)offsetof(attune_said, problem);
  attune_error_read(error, &said);
  CHECK(strcmp(said.code, "struct-size") == 0);
  unsigned char rest[sizeof said - offsetof(attune_said, problem)];
  memset(rest, 0x55, sizeof rest);
  CHECK(memcmp((const char*)&said + offsetof(attune_said, problem), rest, sizeof rest) == 0);
  attune_error_free(error);
  attune_free(a);
  drop(p);
}

static void errors(void) {
  attune_what what = alibi_what();
  attune_attention* none = NULL;
  what.mask.text = "kv <= w";
  what.mask.file = "model.py";
  what.mask.line = 42;
  attune_error* error = attune_new(&what, &none);
  attune_said said;
  memset(&said, 0, sizeof said);
  said.size = sizeof said;
  CHECK(error != NULL);
  attune_error_read(error, &said);
  CHECK(strcmp(said.code, "unknown-name") == 0);
  CHECK(strcmp(said.name, "model.py") == 0 && said.line == 42);
  CHECK(strcmp(said.text, "kv <= w") == 0 && said.begin == 6 && said.end == 7);
  CHECK(!said.bug && *said.problem && *said.why && *said.fix && strstr(said.message, "model.py:42"));
  attune_error_free(error);
  what = alibi_what();
  what.score.text = "s +";
  error = attune_new(&what, &none);
  attune_error_read(error, &said);
  CHECK(strcmp(said.name, "score") == 0 && said.line == 0);
  attune_error_free(error);

  what = alibi_what();
  what.target = 9;
  REFUSED(attune_new(&what, &none), "bad-choice");
  what = alibi_what();
  what.exact = 2;
  REFUSED(attune_new(&what, &none), "bad-choice");
  attune_name name = slope_name;
  what = alibi_what();
  what.captures = &name;
  name.kind = 'x';
  REFUSED(attune_new(&what, &none), "declared-kind");
  name.kind = 0;
  REFUSED(attune_new(&what, &none), "declared-kind");
  name = slope_name;
  name.rank = 5;
  REFUSED(attune_new(&what, &none), "bad-rank");
  name = slope_name;
  name.name = NULL;
  REFUSED(attune_new(&what, &none), "null-pointer");
  name.name = "kv";
  REFUSED(attune_new(&what, &none), "reserved-name");
  name.name = "a b";
  REFUSED(attune_new(&what, &none), "bad-name");
  const attune_name bool_param = {"flag", 'b', 0};
  what = alibi_what();
  what.params = &bool_param;
  what.n_params = 1;
  REFUSED(attune_new(&what, &none), "declared-kind");
  attune_let let = {"far", {"kv - zzz", "let.py", 7}};
  what = alibi_what();
  what.lets = &let;
  what.n_lets = 1;
  error = attune_new(&what, &none);
  attune_error_read(error, &said);
  CHECK(strcmp(said.code, "unknown-name") == 0 && strcmp(said.name, "let.py") == 0 && said.line == 7);
  attune_error_free(error);
  let.value.text = NULL;
  REFUSED(attune_new(&what, &none), "null-pointer");
  CHECK(!none);

  // Of calls: with the caller's file and line.
  problem* p = problem_of(1, n);
  attune_attention* a = alibi();
  attune_call call = p->call;
  call.file = "train.py";
  call.line = 12;
  tensor* narrow = floats(p->k, 4, 1, kv_heads, n, d / 2);
  call.k = &narrow->t;
  error = attune_run(a, &call, NULL);
  attune_error_read(error, &said);
  CHECK(strcmp(said.code, "head-size") == 0 && strcmp(said.name, "train.py") == 0 && said.line == 12);
  attune_error_free(error);
  call = p->call;
  call.pass = 3;
  REFUSED(attune_run(a, &call, NULL), "bad-choice");
  call = p->call;
  call.n_captures = 0;
  REFUSED(attune_run(a, &call, NULL), "bind-count");
  const attune_tensor* nothing[1] = {NULL};
  call = p->call;
  call.captures = nothing;
  REFUSED(attune_run(a, &call, NULL), "capture-missing");
  call = p->call;
  call.q = NULL;
  REFUSED(attune_run(a, &call, NULL), "tensor-missing");
  for (int i = 0; i < heads * n * d; ++i) CHECK(p->o[i] == 0);
  free(narrow);
  attune_free(a);
  drop(p);
}

static void tensors(void) {
  problem* p = problem_of(1, n);
  attune_attention* a = alibi();
  GOOD(attune_run(a, &p->call, NULL));
  float* wanted = malloc(heads * n * d * sizeof(float));
  memcpy(wanted, p->o, heads * n * d * sizeof(float));
  const size_t bytes = heads * n * d * sizeof(float);

  // An offset in bytes, and no alignment beyond an element's.
  char* shifted = malloc(bytes + 256);
  memcpy(shifted + 36, p->q, bytes);
  p->tq->t.data = shifted;
  p->tq->t.byte_offset = 36;
  memset(p->o, 0, bytes);
  GOOD(attune_run(a, &p->call, NULL));
  CHECK(memcmp(p->o, wanted, bytes) == 0);
  p->tq->t.byte_offset = 37;
  REFUSED(attune_run(a, &p->call, NULL), "dlpack-aligned");
  p->tq->t.data = p->q;
  p->tq->t.byte_offset = 0;

  // Strides: negative along q and o, and a slope that all heads share.
  float* turned = malloc(bytes);
  for (int h = 0; h < heads; ++h)
    for (int i = 0; i < n; ++i) memcpy(turned + (h * n + n - 1 - i) * d, p->q + (h * n + i) * d, d * sizeof(float));
  const int64_t back[4] = {heads * n * d, n * d, -d, 1};
  memcpy(p->tq->strides, back, sizeof back);
  p->tq->t.strides = p->tq->strides;
  p->tq->t.data = turned;
  p->tq->t.byte_offset = (n - 1) * d * sizeof(float);
  memset(p->o, 0, bytes);
  GOOD(attune_run(a, &p->call, NULL));
  CHECK(memcmp(p->o, wanted, bytes) == 0);
  p->tslope->t.strides = p->tslope->strides;
  p->tslope->strides[0] = 0;
  GOOD(attune_run(a, &p->call, NULL));
  const float first = p->slope[0];
  float same[heads];
  for (int h = 0; h < heads; ++h) same[h] = first;
  memcpy(wanted, p->o, bytes);
  p->tslope->t.strides = NULL;
  p->tslope->t.data = same;
  GOOD(attune_run(a, &p->call, NULL));
  CHECK(memcmp(p->o, wanted, bytes) == 0);
  p->tslope->t.data = p->slope;

  // Tensors that attune does not support.
  const attune_tensor good = p->tq->t;
  p->tq->t.dtype.lanes = 4;
  REFUSED(attune_run(a, &p->call, NULL), "dlpack-lanes");
  p->tq->t = good;
  const uint8_t types[][2] = {
      {ATTUNE_FLOAT, 8}, {ATTUNE_BFLOAT, 32}, {ATTUNE_UINT, 16}, {ATTUNE_INT, 4}, {ATTUNE_BOOL, 1}, {3, 64}, {5, 64},
      {200, 8}};
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
    p->tq->t.dtype.code = types[i][0];
    p->tq->t.dtype.bits = types[i][1];
    REFUSED(attune_run(a, &p->call, NULL), "dlpack-type");
  }
  p->tq->t = good;
  p->tq->t.device.device_type = 10;
  REFUSED(attune_run(a, &p->call, NULL), "dlpack-device");
  p->tq->t = good;
  p->tq->t.ndim = 5;
  REFUSED(attune_run(a, &p->call, NULL), "bad-rank");
  p->tq->t.ndim = -1;
  REFUSED(attune_run(a, &p->call, NULL), "bad-rank");
  p->tq->t = good;
  p->tq->t.shape = NULL;
  REFUSED(attune_run(a, &p->call, NULL), "null-pointer");
  p->tq->t = good;
  p->tq->shape[2] = -1;
  REFUSED(attune_run(a, &p->call, NULL), "bad-extent");
  p->tq->shape[2] = n;
  p->tq->t.data = NULL;
  REFUSED(attune_run(a, &p->call, NULL), "tensor-null");
  p->tq->t = good;
  p->tq->t.dtype.code = ATTUNE_INT;
  REFUSED(attune_run(a, &p->call, NULL), "tensor-type");
  p->tq->t = good;
  p->tslope->t.dtype.code = ATTUNE_INT;
  REFUSED(attune_run(a, &p->call, NULL), "capture-type");
  p->tslope->t.dtype.code = ATTUNE_FLOAT;
  // Pinned memory is the host's.
  p->tq->t.device.device_type = ATTUNE_CUDA_HOST;
  GOOD(attune_run(a, &p->call, NULL));
  CHECK(memcmp(p->o, wanted, bytes) != 0);
  free(shifted);
  free(turned);
  free(wanted);
  attune_free(a);
  drop(p);
}

// Every type that captures may have: each reads 0, 1, 1, 0.
static void types(void) {
  const float f32[] = {0, 1, 1, 0};
  const double f64[] = {0, 1, 1, 0};
  const uint16_t f16[] = {0, 0x3c00, 0x3c00, 0}, bf16[] = {0, 0x3f80, 0x3f80, 0};
  const int64_t i64[] = {0, 1, 1, 0};
  const int32_t i32[] = {0, 1, 1, 0};
  const int16_t i16[] = {0, 1, 1, 0};
  const int8_t i8[] = {0, 1, 1, 0};
  const uint8_t u8[] = {0, 1, 1, 0};
  const struct {
    const void* data;
    int code, bits, kind;
  } all[] = {{f32, ATTUNE_FLOAT, 32, 'f'},   {f64, ATTUNE_FLOAT, 64, 'f'}, {f16, ATTUNE_FLOAT, 16, 'f'},
             {bf16, ATTUNE_BFLOAT, 16, 'f'}, {i64, ATTUNE_INT, 64, 'i'},   {i32, ATTUNE_INT, 32, 'i'},
             {i16, ATTUNE_INT, 16, 'i'},     {i8, ATTUNE_INT, 8, 'i'},     {u8, ATTUNE_UINT, 8, 'i'},
             {u8, ATTUNE_BOOL, 8, 'b'}};
  const char* const scores[] = {"s + x[h]", "s + f32(x[h])", "s + f32(x[h])"};
  problem* p = problem_of(3, n);
  float* wanted = NULL;
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    const attune_name name = {"x", all[i].kind, 1};
    attune_what what;
    memset(&what, 0, sizeof what);
    what.size = sizeof what;
    // A head's number cancels in the softmax; in the lse it does not.
    what.score.text = scores[all[i].kind == 'f' ? 0 : all[i].kind == 'i' ? 1 : 2];
    what.captures = &name;
    what.n_captures = 1;
    attune_attention* a = made(&what);
    void* data;
    memcpy(&data, &all[i].data, sizeof data);
    tensor* x = of(data, all[i].code, all[i].bits, 1, heads, 0, 0, 0);
    float* lse = calloc(heads * n, 4);
    tensor* tlse = floats(lse, 3, 1, heads, n, 0);
    const attune_tensor* captures[] = {&x->t};
    attune_call call = p->call;
    call.captures = captures;
    call.lse = &tlse->t;
    GOOD(attune_run(a, &call, NULL));
    if (!wanted) {
      wanted = lse;
    } else {
      CHECK(memcmp(lse, wanted, heads * n * 4) == 0);
      free(lse);
    }
    free(x);
    free(tlse);
    attune_free(a);
  }
  free(wanted);
  drop(p);
}

static void names(void) {
  // Declared in another order than they are read in; one that no expression reads may be left out.
  const attune_name captures[] = {{"unread", 'i', 2}, {"late", 'f', 1}, {"early", 'f', 1}};
  const attune_name params[] = {{"idle", 'f', 0}, {"reach", 'i', 0}, {"cap", 'f', 0}};
  const attune_let lets[] = {{"far", {"kv - q", NULL, 0}}, {"much", {"f32(far) * early[h]", NULL, 0}}};
  attune_what what;
  memset(&what, 0, sizeof what);
  what.size = sizeof what;
  what.score.text = "cap * tanh((s + much) / cap) + late[h]";
  what.mask.text = "far <= 0 && -far < reach";
  what.captures = captures;
  what.params = params;
  what.lets = lets;
  what.n_captures = 3;
  what.n_params = 3;
  what.n_lets = 2;
  attune_attention* a = made(&what);
  problem* p = problem_of(5, n);
  float* late = normals(heads, 77);
  tensor* tlate = floats(late, 1, heads, 0, 0, 0);
  const attune_tensor* bound[] = {NULL, &tlate->t, &p->tslope->t};
  double numbers[] = {0, n, 1e6};
  attune_call call = p->call;
  call.captures = bound;
  call.n_captures = 3;
  call.params = numbers;
  call.n_params = 3;
  GOOD(attune_run(a, &call, NULL));
  // With so wide a cap and reach, and a number for each row that cancels, it is ALiBi.
  CHECK(error_of(p, n) < 1e-4);
  numbers[1] = 2.5;
  REFUSED(attune_run(a, &call, NULL), "bind-param");
  call.n_params = 2;
  REFUSED(attune_run(a, &call, NULL), "bind-count");
  call.params = NULL;
  call.n_params = 3;
  REFUSED(attune_run(a, &call, NULL), "null-pointer");
  float *grad = normals(heads * n * d, 5), *other = calloc(n * n, 4);
  tensor *tgrad = floats(grad, 4, 1, heads, n, d), *tother = floats(other, 2, n, n, 0, 0);
  const attune_tensor* grads[] = {&tother->t, NULL, NULL};
  call.pass = ATTUNE_BACKWARD;
  call.o = NULL;
  call.params = numbers;
  call.grad_o = &tgrad->t;
  call.captured_grads = grads;
  call.n_captured_grads = 3;
  REFUSED(attune_run(a, &call, NULL), "grad-not-captured");
  char* json = NULL;
  GOOD(attune_describe(a, &json));
  CHECK(strstr(json, "{\"name\":\"unread\",\"kind\":\"i\",\"rank\":2,\"slot\":0,\"used\":false,\"gradient\":false}"));
  CHECK(strstr(json, "{\"name\":\"early\",\"kind\":\"f\",\"rank\":1,\"slot\":2,\"used\":true,\"gradient\":true}"));
  CHECK(strstr(json, "{\"name\":\"idle\",\"kind\":\"f\",\"slot\":0,\"used\":false}"));
  CHECK(strstr(json, "\"mod\":{\"score\":\"cap * tanh((s + much) / cap) + late[h]\""));
  attune_string_free(json);
  void* all[] = {late, tlate, grad, other, tgrad, tother};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
  attune_free(a);
  drop(p);
}

static void descriptions(void) {
  attune_attention* a = alibi();
  char *text = NULL, *json = NULL;
  GOOD(attune_explain(a, &text));
  CHECK(strstr(text, "slope[h]") && strstr(text, "kv <= q"));
  GOOD(attune_describe(a, &json));
  const char* const keys[] = {"\"digest\":\"",
                              "\"written\":{\"score\":\"s + slope[h] * f32(kv - q)\"",
                              "\"mask\":\"kv <= q\"",
                              "\"captures\":[",
                              "\"params\":[]",
                              "\"derivative\":{\"score\":\"1.0",
                              "\"scatters\":[{",
                              "\"affine\":true",
                              "\"bounded\":",
                              "\"core\":",
                              "\"row\":",
                              "\"levels\":{\"head\":[",
                              "\"rewrites\":[",
                              "\"steps\":[{",
                              "\"sections\":[{",
                              "\"text\":",
                              "\"slope\":\"f32[1]\""};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; ++i) {
    if (!strstr(json, keys[i])) printf("no %s in %s\n", keys[i], json);
    CHECK(strstr(json, keys[i]));
  }
  attune_string_free(text);
  attune_string_free(json);
  attune_free(a);
  char* machine = NULL;
  GOOD(attune_machine(&machine));
  const char* const facts[] = {"\"version\":\"0.1.0\"",
                               "\"engines\":[\"cpu\"",
                               "\"oracle\"]",
                               "\"isas\":[\"portable\"",
                               "\"devices\":[",
                               "\"sm_80\"",
                               "\"avx2\"",
                               "\"name\":\"ATTUNE_LOG\""};
  for (size_t i = 0; i < sizeof facts / sizeof *facts; ++i) {
    if (!strstr(machine, facts[i])) printf("no %s in %s\n", facts[i], machine);
    CHECK(strstr(machine, facts[i]));
  }
  attune_string_free(machine);
}

static void options(void) {
  GOOD(attune_option("ATTUNE_CACHE", "off"));
  REFUSED(attune_option("ATTUNE_THREAD", "2"), "unknown-option");
  REFUSED(attune_option("ATTUNE_THREADS", "none"), "option-value");
  GOOD(attune_option("ATTUNE_THREADS", "3"));
  GOOD(attune_option("ATTUNE_LOG", "all"));
  GOOD(attune_option("ATTUNE_LOG", NULL));
  char* machine = NULL;
  GOOD(attune_machine(&machine));
  CHECK(strstr(machine, "\"threads\":3"));
  attune_string_free(machine);
  attune_attention* a = alibi();
  REFUSED(attune_option("ATTUNE_THREADS", "2"), "option-late");
  GOOD(attune_option("ATTUNE_JIT", "off"));
  problem* p = problem_of(1, n);
  REFUSED(attune_run(a, &p->call, NULL), "kernel-missing");
  REFUSED(attune_option("ATTUNE_JIT", "maybe"), "option-value");
  GOOD(attune_option("ATTUNE_JIT", NULL));
  GOOD(attune_run(a, &p->call, NULL));
  attune_free(a);
  drop(p);
}

static int32_t stop_at_once(void* user, double done) {
  ++*(int*)user;
  CHECK(done >= 0 && done <= 1);
  return 1;
}
static int32_t go_on(void* user, double done) {
  CHECK(done >= 0 && done <= 1);
  ++*(int*)user;
  return 0;
}

// The oracle is slow enough that progress callbacks are called.
static void progress(void) {
  attune_what what = alibi_what();
  what.target = ATTUNE_ENGINE_ORACLE;
  attune_attention* a = made(&what);
  problem* p = problem_of(1, 1200);
  attune_with with;
  memset(&with, 0, sizeof with);
  with.size = sizeof with;
  int asked = 0;
  with.user = &asked;
  with.progress = stop_at_once;
  REFUSED(attune_run(a, &p->call, &with), "stopped");
  CHECK(asked == 1);
  problem* small = problem_of(1, n);
  with.progress = go_on;
  GOOD(attune_run(a, &small->call, &with));
  CHECK(error_of(small, n) < 1e-5);
  attune_free(a);
  drop(p);
  drop(small);
}

static void in_turn(void* user, int64_t count, attune_task task, void* run) {
  for (int64_t i = 0; i < count; ++i) task(run, i, (int32_t)(i % 2));
  ++*(int*)user;
}

static void loops(void) {
  attune_attention* a = alibi();
  problem* p = problem_of(1, n);
  int loops_run = 0;
  attune_with with;
  memset(&with, 0, sizeof with);
  with.size = sizeof with;
  with.workers = 2;
  with.parallel_for = in_turn;
  with.user = &loops_run;
  size_t bytes = 0, cover = 0;
  GOOD(attune_prepare(a, &p->call, &with, &bytes, &cover));
  void* memory = NULL;
  CHECK(posix_memalign(&memory, 64, bytes) == 0);
  with.workspace = memory;
  with.workspace_bytes = bytes;
  GOOD(attune_run(a, &p->call, &with));
  CHECK(loops_run > 0);
  CHECK(error_of(p, n) < 1e-5);
  with.workspace_bytes = bytes - 1;
  REFUSED(attune_run(a, &p->call, &with), "workspace-small");
  with.workspace = NULL;
  REFUSED(attune_run(a, &p->call, &with), "null-pointer");
  with.workspace_bytes = 0;
  with.workers = 0;
  REFUSED(attune_run(a, &p->call, &with), "executor-workers");
  free(memory);
  attune_free(a);
  drop(p);
}

static void free_it(void* user, int64_t count, attune_task task, void* run) {
  attune_attention** a = user;
  attune_free(*a);
  *a = NULL;
  for (int64_t i = 0; i < count; ++i) task(run, i, 0);
}

static void ignore(void* user, const char* json) {
  (void)user;
  (void)json;
}

static void lifetimes(void) {
  // Freed by its own call.
  attune_attention* a = alibi();
  problem* p = problem_of(1, n);
  attune_with with;
  memset(&with, 0, sizeof with);
  with.size = sizeof with;
  with.workers = 1;
  with.parallel_for = free_it;
  with.user = &a;
  GOOD(attune_run(a, &p->call, &with));
  CHECK(a == NULL);
  CHECK(error_of(p, n) < 1e-5);
  // In any order.
  for (int order = 0; order < 6; ++order) {
    a = alibi();
    attune_watch* watch = NULL;
    GOOD(attune_watch_on(ignore, NULL, &watch));
    attune_cover* cover = NULL;
    GOOD(attune_cover_new(a, &p->call, NULL, &cover));
    CHECK(cover == NULL);  // on the host there is none
    attune_tensor* memory = NULL;
    GOOD(attune_alloc(&p->tq->t, &memory));
    attune_call call = p->call;
    call.q = NULL;
    attune_error* error = attune_run(a, &call, NULL);
    for (int i = 0; i < 4; ++i) switch ((order + i * (order < 3 ? 1 : 3)) % 4) {
        case 0: attune_free(a); break;
        case 1: attune_watch_off(watch); break;
        case 2: attune_dealloc(memory); break;
        default: attune_error_free(error); break;
      }
  }
  drop(p);
}

typedef struct {
  const attune_attention* attention;
  unsigned seed;
  int bad;
} thread_work;

static void* on_thread(void* user) {
  thread_work* work = user;
  problem* p = problem_of(work->seed, n);
  for (int i = 0; i < 20; ++i) {
    memset(p->o, 0, heads * n * d * sizeof(float));
    attune_error* error = attune_run(work->attention, &p->call, NULL);
    work->bad += error != NULL || error_of(p, n) > 1e-5;
    attune_error_free(error);
    attune_call call = p->call;
    call.k = NULL;
    error = attune_run(work->attention, &call, NULL);
    work->bad += error == NULL;
    attune_error_free(error);
    attune_attention* own = NULL;
    const attune_what what = alibi_what();
    error = attune_new(&what, &own);
    work->bad += error != NULL;
    attune_free(own);
  }
  drop(p);
  return NULL;
}

static void threads(void) {
  attune_attention* a = alibi();
  pthread_t running[4];
  thread_work work[4];
  for (unsigned i = 0; i < 4; ++i) {
    const thread_work one = {a, 100 + 10 * i, 0};
    work[i] = one;
    CHECK(pthread_create(&running[i], NULL, on_thread, &work[i]) == 0);
  }
  for (int i = 0; i < 4; ++i) {
    pthread_join(running[i], NULL);
    CHECK(work[i].bad == 0);
  }
  attune_free(a);
}

static long resident_bytes(void) {
  FILE* file = fopen("/proc/self/statm", "r");
  long pages = 0, resident = 0;
  if (file && fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
  if (file) fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

// 10^4 calls, and as many attentions and errors, leak nothing: memory stays as it was after the first thousand.
static void flat_memory(void) {
  attune_attention* a = alibi();
  problem* p = problem_of(1, 4);
  attune_call wrong = p->call;
  wrong.k = NULL;
  long before = 0;
  for (int i = 0; i < 11000; ++i) {
    if (i == 1000) before = resident_bytes();
    attune_error* error = attune_run(a, &p->call, NULL);
    if (error) {
      GOOD(error);
      break;
    }
    attune_error_free(attune_run(a, &wrong, NULL));
    if (i % 10) continue;
    attune_free(alibi());
    char* json = NULL;
    GOOD(attune_describe(a, &json));
    attune_string_free(json);
    attune_tensor* memory = NULL;
    GOOD(attune_alloc(&p->tq->t, &memory));
    attune_dealloc(memory);
    attune_watch* watch = NULL;
    GOOD(attune_watch_on(ignore, NULL, &watch));
    attune_watch_off(watch);
  }
  const long grown = resident_bytes() - before;
  if (grown > 1 << 20) printf("grew by %ld bytes\n", grown);
  CHECK(grown <= 1 << 20);
  attune_free(a);
  drop(p);
}

static void pictures(void) {
  const attune_name doc_name = {"doc", 'i', 1};
  attune_what what;
  memset(&what, 0, sizeof what);
  what.size = sizeof what;
  what.mask.text = "kv <= q && doc[q] == doc[kv]";
  what.captures = &doc_name;
  what.n_captures = 1;
  attune_attention* a = made(&what);
  int32_t doc[100];
  for (int i = 0; i < 100; ++i) doc[i] = i / 30;
  tensor* tdoc = of(doc, ATTUNE_INT, 32, 1, 100, 0, 0, 0);
  const attune_tensor* captures[] = {&tdoc->t};
  attune_picture picture;
  memset(&picture, 0, sizeof picture);
  picture.size = sizeof picture;
  picture.q_len = 90;
  picture.kv_len = 100;
  picture.captures = captures;
  picture.n_captures = 1;
  const int64_t tiles[][2] = {{16, 8}, {1, 1}, {90, 100}, {7, 64}};
  for (size_t t = 0; t < sizeof tiles / sizeof *tiles; ++t) {
    picture.tile_q = tiles[t][0];
    picture.tile_kv = tiles[t][1];
    int64_t rows = 0, cols = 0;
    GOOD(attune_tiles(a, &picture, NULL, 0, &rows, &cols));
    CHECK(rows == (90 + tiles[t][0] - 1) / tiles[t][0] && cols == (100 + tiles[t][1] - 1) / tiles[t][1]);
    uint8_t* cells = malloc((size_t)(rows * cols));
    REFUSED(attune_tiles(a, &picture, cells, (size_t)(rows * cols) - 1, NULL, NULL), "bad-size");
    GOOD(attune_tiles(a, &picture, cells, (size_t)(rows * cols), NULL, NULL));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        int64_t kept = 0, all = 0;
        for (int64_t q = r * tiles[t][0]; q < (r + 1) * tiles[t][0] && q < 90; ++q)
          for (int64_t k = c * tiles[t][1]; k < (c + 1) * tiles[t][1] && k < 100; ++k)
            ++all, kept += k <= q && doc[q] == doc[k];
        CHECK(cells[r * cols + c] == (kept == 0 ? ATTUNE_EMPTY : kept == all ? ATTUNE_FULL : ATTUNE_PARTIAL));
      }
    free(cells);
  }
  attune_drawing drawing;
  memset(&drawing, 0, sizeof drawing);
  drawing.size = sizeof drawing;
  drawing.picture = &picture;
  for (int panels = 0; panels < 8; ++panels) {
    char* svg = NULL;
    drawing.panels = panels;
    GOOD(attune_draw(a, &drawing, &svg));
    CHECK(strncmp(svg, "<svg", 4) == 0 && (strstr(svg, "probability") != NULL) == !!(panels & ATTUNE_DRAW_PROB));
    attune_string_free(svg);
  }
  char* none = NULL;
  drawing.q = &tdoc->t;
  REFUSED(attune_draw(a, &drawing, &none), "picture-qk");
  drawing.panels = 1 << 20;
  REFUSED(attune_draw(a, &drawing, &none), "bad-choice");
  drawing.q = NULL;
  drawing.panels = ATTUNE_DRAW_TILES;
  uint8_t cell = 0;
  picture.tile_q = 0;
  REFUSED(attune_draw(a, &drawing, &none), "bad-size");
  REFUSED(attune_tiles(a, &picture, NULL, 0, NULL, NULL), "bad-size");
  picture.tile_q = 128;
  picture.tile_kv = 128;
  picture.head = -1;
  REFUSED(attune_tiles(a, &picture, NULL, 0, NULL, NULL), "bad-size");
  picture.head = 0;
  picture.n_captures = 0;
  REFUSED(attune_tiles(a, &picture, &cell, 1, NULL, NULL), "bind-count");
  picture.n_captures = 1;
  tdoc->t.device.device_type = ATTUNE_CUDA;
  REFUSED(attune_tiles(a, &picture, &cell, 1, NULL, NULL), "tensor-device");
  REFUSED(attune_draw(a, &drawing, &none), "tensor-device");
  CHECK(!none);
  free(tdoc);
  attune_free(a);
}

static char facts[1 << 16];
static void remember(void* user, const char* json) {
  (void)user;
  if (strlen(facts) + strlen(json) + 2 < sizeof facts) strcat(strcat(facts, json), "\n");
}

static int32_t count_rows(void* user, double done, const char* row) {
  CHECK(done > 0 && done <= 1 && *row);
  ++*(int*)user;
  return 0;
}
static int32_t stop_rows(void* user, double done, const char* row) {
  (void)user;
  (void)done;
  (void)row;
  return -1;
}

static char* bytes_of(const char* path, size_t* count) {
  FILE* file = fopen(path, "rb");
  if (!file) return NULL;
  fseek(file, 0, SEEK_END);
  *count = (size_t)ftell(file);
  rewind(file);
  char* out = malloc(*count);
  if (fread(out, 1, *count, file) != *count) *count = 0;
  fclose(file);
  return out;
}

static void compile_bundle(const char* path) {
  int rows = 0;
  attune_job job;
  memset(&job, 0, sizeof job);
  job.size = sizeof job;
  job.manifest = "{\"mods\": {\"score\": \"s + slope[h] * f32(kv - q)\", \"mask\": \"kv <= q\", \"captures\": "
                 "{\"slope\": \"f32[1]\"}},"
                 " \"shapes\": {\"dtype\": \"f32\", \"d\": 16}, \"targets\": \"host\"}";
  job.bundle = path;
  job.user = &rows;
  job.progress = stop_rows;
  char* report = NULL;
  REFUSED(attune_compile(&job, &report), "stopped");
  CHECK(!report && access(path, F_OK) != 0);
  job.progress = count_rows;
  GOOD(attune_compile(&job, &report));
  CHECK(report && strstr(report, "\"bundle\":{\"file\":\"/tmp/attune-c-bundle-") && rows > 0);
  attune_string_free(report);

  attune_job wrong = job;
  wrong.manifest = "{\"mods\": {\"score\": \"s + \"}, \"targets\": \"host\"}";
  REFUSED(attune_compile(&wrong, NULL), "missing-operand");
  wrong.manifest = "{\"targets\": \"hst\"}";
  wrong.name = "my kernels";
  attune_error* error = attune_compile(&wrong, NULL);
  attune_said said;
  memset(&said, 0, sizeof said);
  said.size = sizeof said;
  if (error) attune_error_read(error, &said);
  CHECK(error && strcmp(said.code, "unknown-target") == 0 && strcmp(said.name, "my kernels") == 0);
  attune_error_free(error);
  wrong.manifest = "{";
  REFUSED(attune_compile(&wrong, NULL), "manifest-json");
  wrong = job;
  wrong.jobs = -1;
  REFUSED(attune_compile(&wrong, NULL), "bad-size");
  wrong = job;
  wrong.bundle = "/no/such/folder/a.attune";
  REFUSED(attune_compile(&wrong, NULL), "file-unwritable");
}

// One process compiles a bundle, another uses it, and compiles nothing.
static void bundles(void) {
  char path[] = "/tmp/attune-c-bundle-XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0);
  close(file);
  remove(path);
  const pid_t child = fork();
  GOOD(attune_option("ATTUNE_CACHE", "off"));
  if (child == 0) {
    compile_bundle(path);
    fflush(stdout);
    _exit(failures != 0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  GOOD(attune_option("ATTUNE_JIT", "off"));
  attune_attention* a = alibi();
  problem* p = problem_of(1, n);
  REFUSED(attune_run(a, &p->call, NULL), "kernel-missing");
  REFUSED(attune_load("/no/such/file.attune"), "bundle-unreadable");
  REFUSED(attune_load_bytes("no bundle", 9), "bundle-damaged");
  size_t count = 0;
  char* memory = bytes_of(path, &count);
  CHECK(count > 0);
  GOOD(attune_load_bytes(memory, count));  // they stay until the process ends
  GOOD(attune_run(a, &p->call, NULL));
  CHECK(error_of(p, n) < 1e-5);
  GOOD(attune_load(path));
  remove(path);
  attune_free(a);
  drop(p);
}

static void watches(void) {
  GOOD(attune_option("ATTUNE_CACHE", "off"));
  attune_watch* watch = NULL;
  GOOD(attune_watch_on(remember, NULL, &watch));
  attune_attention* a = alibi();
  problem* p = problem_of(1, n);
  p->call.file = "model.py";
  p->call.line = 3;
  GOOD(attune_run(a, &p->call, NULL));
  attune_watch_off(watch);
  const char* const wanted[] = {"{\"fact\":\"lowered\",", "{\"fact\":\"built\",", "\"from\":\"compiler\"",
                                "{\"fact\":\"called\",\"call\":\"forward\",", "\"file\":\"model.py\",\"line\":3}"};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; ++i) {
    if (!strstr(facts, wanted[i])) printf("no %s in %s\n", wanted[i], facts);
    CHECK(strstr(facts, wanted[i]));
  }
  facts[0] = 0;
  GOOD(attune_run(a, &p->call, NULL));
  CHECK(!*facts);
  GOOD(attune_watch_facts("called,compiling", remember, NULL, &watch));
  GOOD(attune_run(a, &p->call, NULL));
  attune_watch_off(watch);
  CHECK(strstr(facts, "{\"fact\":\"called\",") == facts && strchr(facts, '\n')[1] == 0);
  attune_free(a);
  drop(p);
}

static void memory(void) {
  problem* p = problem_of(1, n);
  attune_tensor* own = NULL;
  p->tq->t.byte_offset = 4;  // not of the memory that is allocated
  GOOD(attune_alloc(&p->tq->t, &own));
  p->tq->t.byte_offset = 0;
  CHECK(own->ndim == 4 && own->shape[2] == n && own->strides[3] == 1 && own->byte_offset == 0);
  CHECK((uintptr_t)own->data % 64 == 0);
  for (int i = 0; i < heads * n * d; ++i) CHECK(((float*)own->data)[i] == 0);
  GOOD(attune_copy(&p->tq->t, own, NULL));
  CHECK(memcmp(own->data, p->q, heads * n * d * sizeof(float)) == 0);
  REFUSED(attune_copy(&p->tk->t, own, NULL), "copy-shape");
  attune_dealloc(own);
  own = NULL;
  p->tq->t.dtype.lanes = 2;
  REFUSED(attune_alloc(&p->tq->t, &own), "dlpack-lanes");
  CHECK(!own);
  drop(p);
}

// Makes attentions until memory runs out; afterwards everything works as before.
static void no_memory(void) {
  enum { most = 200000 };
  attune_attention** held = calloc(most, sizeof *held);
  attune_free(alibi());
  problem* p = problem_of(1, n);
  FILE* file = fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  CHECK(file && fscanf(file, "%lu", &pages) == 1);
  if (file) fclose(file);
  struct rlimit before;
  CHECK(getrlimit(RLIMIT_AS, &before) == 0);
  const struct rlimit little = {pages * (unsigned long)sysconf(_SC_PAGESIZE) + (4 << 20), before.rlim_max};
  CHECK(setrlimit(RLIMIT_AS, &little) == 0);
  const attune_what what = alibi_what();
  int made_up_to = 0;
  attune_error* error = NULL;
  while (made_up_to < most && !(error = attune_new(&what, &held[made_up_to]))) ++made_up_to;
  CHECK(setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(made_up_to < most);
  REFUSED(error, "no-memory");
  for (int i = 0; i < made_up_to; ++i) attune_free(held[i]);
  free(held);
  attune_attention* a = alibi();
  GOOD(attune_run(a, &p->call, NULL));
  CHECK(error_of(p, n) < 1e-5);
  attune_free(a);
  // An array larger than any machine's memory.
  attune_tensor* none = NULL;
  p->tslope->shape[0] = (int64_t)1 << 45;
  REFUSED(attune_alloc(&p->tslope->t, &none), "no-memory");
  CHECK(!none);
  drop(p);
}

// Kernels of a GPU that are compiled and loaded into this program.
static void emulated(void) {
  static const char* const gpus[] = {"sm_80", "sm_90a:seed=3"};
  for (size_t i = 0; i < sizeof gpus / sizeof *gpus; ++i) {
    problem* p = problem_of(3, n);
    attune_what what = alibi_what();
    GOOD(attune_emulated(gpus[i], &what.target));
    attune_attention* a = made(&what);
    attune_error* const error = attune_run(a, &p->call, NULL);
    if (is_no_compiler(error)) exit(0);
    GOOD(error);
    CHECK(error_of(p, n) < 1e-5);
    attune_free(a);
    drop(p);
  }
}

static attune_error* limited(int which, rlim_t to, const attune_attention* a, const attune_call* call) {
  struct rlimit before;
  CHECK(getrlimit(which, &before) == 0);
  const struct rlimit little = {to, before.rlim_max};
  CHECK(setrlimit(which, &little) == 0);
  attune_error* const error = attune_run(a, call, NULL);
  CHECK(setrlimit(which, &before) == 0);
  return error;
}

// What the system refuses is an error, and the call works as soon as the system allows it. No kernel is kept.
static void emulated_limits(void) {
  problem* p = problem_of(3, n);
  attune_what what = alibi_what();
  GOOD(attune_emulated("sm_80", &what.target));
  attune_attention* a = made(&what);
  // Also where children leave nothing to wait for.
  signal(SIGCHLD, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  REFUSED(limited(RLIMIT_NOFILE, 0, a, &p->call), "emulated-limit");
  const char* const usual = getenv("TMPDIR");
  static const char* const unusable[] = {"/none", "/dev/null", "/proc"};
  for (size_t i = 0; i < sizeof unusable / sizeof *unusable; ++i) {
    setenv("TMPDIR", unusable[i], 1);
    attune_error* const error = attune_run(a, &p->call, NULL);
    if (is_no_compiler(error)) exit(0);
    REFUSED(error, "emulated-folder");
  }
  usual ? setenv("TMPDIR", usual, 1) : unsetenv("TMPDIR");
  REFUSED(limited(RLIMIT_FSIZE, 100, a, &p->call), "emulated-folder");
  GOOD(attune_run(a, &p->call, NULL));
  CHECK(error_of(p, n) < 1e-5);
  attune_free(a);
  drop(p);
}

int main(int count, char** words) {
  static const struct {
    const char* name;
    void (*run)(void);
  } cases[] = {{"values", values},
               {"gradients", gradients},
               {"caches", caches},
               {"over_ranks", over_ranks},
               {"null_pointers", null_pointers},
               {"sizes", sizes},
               {"errors", errors},
               {"tensors", tensors},
               {"types", types},
               {"names", names},
               {"descriptions", descriptions},
               {"options", options},
               {"progress", progress},
               {"loops", loops},
               {"lifetimes", lifetimes},
               {"threads", threads},
               {"flat_memory", flat_memory},
               {"pictures", pictures},
               {"bundles", bundles},
               {"watches", watches},
               {"memory", memory},
               {"no_memory", no_memory},
               {"emulated", emulated},
               {"emulated_limits", emulated_limits}};
  int run = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
    if (count == 2 && strcmp(words[1], cases[i].name) == 0) cases[i].run(), ++run;
  if (run == 0) printf("usage: %s CASE\n", words[0]);
  if (run == 1 && failures == 0) puts("ok");
  return failures || run != 1;
}
