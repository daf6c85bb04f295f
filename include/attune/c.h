// include/attune/c.h — the C ABI of libattune.so: attentions from text, calls on borrowed tensors, errors as values
#ifndef ATTUNE_C_H
#define ATTUNE_C_H

// For every language that can call C99. What the words mean is told in the C++ headers and in docs/; a first program is
// docs/c.md.
//
// Errors: a function that can fail returns NULL, or an error that its caller reads and frees. What such a function
// would have written is then untouched, except where it is said otherwise. No exception leaves the library.
//
// Structs: fill them with zeros, set `size` to sizeof the struct, then set what you need: zero, or NULL, always means
// "not given". Later versions append members and functions and change none, so that a program built with this header
// works with every later libattune.so.0. Structs without a `size` stay as they are.
//
// Lifetime: everything passed in is borrowed for the duration of the call. What a function gives you, you free with the
// function named beside it, in any order: each thing keeps what it needs. NULL may always be freed.
//
// Threads: all functions may run at once on any threads, also with the same attention or cover. An attention does not
// change after attune_new. attune_free within a call of that attention, from a callback, is safe.
//
// Text is UTF-8 and ends with a 0. JSON is one object; readers skip keys that they do not know.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ATTUNE_API __attribute__((visibility("default")))
#else
#define ATTUNE_API
#endif

// The version of this header. attune_version() tells that of the library. 0.1.0 is 100.
#define ATTUNE_VERSION_MAJOR 0
#define ATTUNE_VERSION_MINOR 1
#define ATTUNE_VERSION_PATCH 0
#define ATTUNE_VERSION (ATTUNE_VERSION_MAJOR * 10000 + ATTUNE_VERSION_MINOR * 100 + ATTUNE_VERSION_PATCH)

// ---- Tensors: DLPack's DLTensor, field by field. Where dlpack.h was included before, it is the very same type.

#ifdef DLPACK_DLPACK_H_
typedef DLDevice attune_device;
typedef DLDataType attune_dtype;
typedef DLTensor attune_tensor;
#else
typedef struct {
  int32_t device_type;  // ATTUNE_CPU, ATTUNE_CUDA, …
  int32_t device_id;
} attune_device;
typedef struct {
  uint8_t code;  // ATTUNE_FLOAT, …
  uint8_t bits;
  uint16_t lanes;  // 1
} attune_dtype;
typedef struct {
  void* data;
  attune_device device;
  int32_t ndim;
  attune_dtype dtype;
  int64_t* shape;
  int64_t* strides;      // in elements, 0 and negative allowed; NULL: contiguous, the last dimension fastest
  uint64_t byte_offset;  // of the first element from `data`
} attune_tensor;
#endif

// device_type. Pinned memory counts as the host's, managed memory as its device's.
enum { ATTUNE_CPU = 1, ATTUNE_CUDA = 2, ATTUNE_CUDA_HOST = 3, ATTUNE_CUDA_MANAGED = 13 };
// dtype.code. Types: f16 f32 f64, bf16, i8 i16 i32 i64, u8, bool (8 bits), e4m3 (DLPack's float8_e4m3fn, 8 bits).
enum { ATTUNE_INT = 0, ATTUNE_UINT = 1, ATTUNE_FLOAT = 2, ATTUNE_BFLOAT = 4, ATTUNE_BOOL = 6, ATTUNE_E4M3 = 10 };

// ---- Errors

typedef struct attune_error attune_error;

// What an error says. Texts belong to the error; those that it does not have are "", never NULL.
typedef struct {
  uint32_t size;
  int32_t bug;          // 1: attune's own mistake, to be reported; then only `message` is set, and code is "bug"
  int32_t line;         // of the source file `name`; 0: none
  const char* code;     // stable: an anchor of docs/errors.md
  const char* problem;  // what is wrong
  const char* name;     // where: a source file, an expression's name, a file, an option
  const char* text;     // the expression that is wrong, or ""
  const char* why;      // the facts that collide
  const char* fix;      // what to do
  const char* message;  // all of it as a page with a caret, as a terminal would show it
  size_t begin, end;    // the wrong part of `text` in bytes, half open; begin == end: none
} attune_said;

// Fills `*said`, whose `size` the caller has set.
ATTUNE_API void attune_error_read(const attune_error* error, attune_said* said);
ATTUNE_API void attune_error_free(attune_error* error);

// ---- The library and the machine

// The library's version, as ATTUNE_VERSION is written.
ATTUNE_API uint32_t attune_version(void);
// Frees a text that a function of this header gave.
ATTUNE_API void attune_string_free(char* text);
// Sets an option of docs/debugging.md, "ATTUNE_LOG" say, in place of the process's environment; NULL takes that back.
// Options are read once: after the first call that makes an attention, compiles, or tells about the machine, this is
// the error `option-late`. ATTUNE_JIT alone may be set at any time.
ATTUNE_API attune_error* attune_option(const char* name, const char* value);
// JSON: the library's version, its engines, what this machine can run, and what attune_compile can compile for:
//   {"version": "0.1.0", "engines": ["cpu", "cuda", "oracle"],
//    "cpu": {"isa": "avx512", "isas": […], "threads": 8},
//    "cuda": {"why": "why there are no devices, or empty", "devices": [{"index": 0, "name": "…", "arch": 90,
//             "target": "sm_90a", "multiprocessors": 132}]},
//    "targets": ["sm_80", …, "avx512", …],
//    "options": [{"name": "ATTUNE_LOG", "takes": "…", "meaning": "…", "otherwise": "…"}]}
// Starts the CUDA driver where there is one.
ATTUNE_API attune_error* attune_machine(char** json);

// ---- Attentions

typedef struct attune_attention attune_attention;

// An expression, and the source file and line where a user wrote it, for errors. file NULL: errors name the expression
// by what it is: "score".
typedef struct {
  const char* text;  // NULL: none
  const char* file;
  int32_t line;
} attune_text;

// A captured tensor or a parameter, declared: calls bind it. Its place in the array is its slot.
typedef struct {
  const char* name;
  int32_t kind;  // 'f', 'i' or 'b': read as Float, Int or Bool. A parameter is 'f' or 'i'.
  int32_t rank;  // 0 to 4; of a parameter, 0
} attune_name;

// A named sub-expression. It may use captures, parameters and the lets before it.
typedef struct {
  const char* name;
  attune_text value;
} attune_let;

enum { ATTUNE_AUTOMATIC = 0, ATTUNE_ENGINE_CPU = 1, ATTUNE_ENGINE_ORACLE = 2, ATTUNE_ENGINE_CUDA = 3 };

typedef struct {
  uint32_t size;
  int32_t target;    // ATTUNE_AUTOMATIC: the engine that reads the memory of q
  int32_t exact;     // GPU kernels: 1 exact, -1 not, 0 by the type of q
  int32_t reserved;  // 0
  attune_text score, mask, prob, sink;
  const double* scale;  // NULL: 1 / sqrt(D)
  const attune_name *captures, *params;
  const attune_let* lets;
  size_t n_captures, n_params, n_lets;
} attune_what;

// Parses and checks. Nothing is compiled yet.
ATTUNE_API attune_error* attune_new(const attune_what* what, attune_attention** attention);
ATTUNE_API void attune_free(attune_attention* attention);

// A page for people: the expressions, what was simplified and why, levels, derivatives, what the softmax makes free.
ATTUNE_API attune_error* attune_explain(const attune_attention* attention, char** text);
// The same facts for programs, as JSON:
//   {"digest": "…",                               the name of the expressions everywhere: cache, facts, dumps
//    "written": {"score": "…", "mask": "…"},      as they were read: those that were given
//    "score": "…", "mask": "…", "prob": "…", "sink": "…",   simplified; "sink" only where there is one
//    "captures": [{"name": "…", "kind": "f", "rank": 1, "slot": 0, "used": true, "gradient": true}],
//    "params": [{"name": "…", "kind": "i", "slot": 0, "used": true}],
//    "derivative": {"score": "…", "prob": "…"},   d score / d s, d prob / d p
//    "scatters": [{"of": "score", "capture": "…", "term": "bias[h, kv] += …", "loops": [8]}],   captured gradients
//    "affine": true, "bounded": false, "core": "…", "row": "…",
//    "levels": {"head": ["…"], "row": ["…"], "col": ["…"], "left": ["…"]},
//    "rewrites": [{"rule": "…", "from": "…", "to": "…"}], "steps": [{"name": "…", "nodes": 3, …}],
//    "sections": [{"title": "…", "lines": ["…"]}], "text": "the page of attune_explain",
//    "mod": {"score": "…", "captures": {"slope": "f32[1]"}}}   for manifests of attune_compile: extents do not matter
ATTUNE_API attune_error* attune_describe(const attune_attention* attention, char** json);

// ---- Calls

enum { ATTUNE_FORWARD = 0, ATTUNE_BACKWARD = 1 };

// q [B, Hq, Sq, D], k [Bk, Hkv, Skv, D], v [Bk, Hkv, Skv, Dv], o [B, Hq, Sq, Dv]; Hq a multiple of Hkv, Bk is B or 1.
// lse and max [B, Hq, Sq], f32 or f64; lse is a natural logarithm. Packed: [T, H, D], lse [Hq, T], and the sequences'
// starts in cu_q and cu_kv (i32, [B + 1]), on the host or where q is.
// A forward takes q k v, writes o and, where given, lse and max.
// A backward takes q k v, grad_o, grad_lse if there is one, o and lse (both, or neither: then the forward is computed
// again), and writes those of dq dk dv and captured_grads that are given. Gradients are overwritten, not added to.
typedef struct {
  uint32_t size;
  int32_t pass;      // ATTUNE_FORWARD or ATTUNE_BACKWARD
  int32_t q_offset;  // at.q of the first query
  int32_t line;      // of `file`, where the call is written, for errors
  const char* file;
  int64_t max_q_len, max_kv_len;  // the longest packed sequence; must be given when cu_q and cu_kv are on a device
  const attune_tensor *q, *k, *v, *o, *lse, *max, *cu_q, *cu_kv;
  const attune_tensor *grad_o, *grad_lse, *dq, *dk, *dv;
  // By slot, as many as were declared. A slot that no expression reads may be NULL.
  const attune_tensor* const* captures;
  const attune_tensor* const* captured_grads;  // NULL, or by slot; an entry that is NULL is not computed
  const double* params;
  size_t n_captures, n_captured_grads, n_params;
  // Of a forward alone, which may describe keys apart from queries: see Forward in attune/attention.h.
  const attune_tensor* kv_len;     // i32 [B], where q is: keys of each entry; k and v may have room for more
  const attune_tensor* q_offsets;  // i32 [B], where q is: at.q of each entry's first query, in place of q_offset
  // i32 [B, n], where q is: k and v are pools [pages, Hkv, page_size, D], and key i of entry b is row i % page_size of
  // page page_table[b, i / page_size].
  const attune_tensor* page_table;
  // Results over other keys, both or neither, to merge with; they may be o and lse.
  const attune_tensor *o_before, *lse_before;
  int64_t fixed_split_size;  // not 0: an entry's bits do not depend on other entries; a multiple of 128
  int32_t kv_offset;         // at.kv of the first key
  int32_t reserved;          // 0
  // Of a backward over ranks: 1: captured_grads are of this rank's queries alone, 0: of all ranks together.
  int32_t own_captured_grads;
  int32_t reserved_2;  // 0
} attune_call;

// Runs task number `task` as worker `worker`.
typedef void (*attune_task)(void* run, int64_t task, int32_t worker);

typedef struct attune_cover attune_cover;
typedef struct attune_sharding attune_sharding;

// What a call may use of this machine. Only calls on the host use workers, parallel_for and progress.
typedef struct {
  uint32_t size;
  int32_t workers;  // the most threads, the calling one included; 0: ATTUNE_THREADS. Needed with parallel_for.
  // For calls on a device: a CUstream of the device of q; NULL is the default one. The call returns once it is
  // enqueued; tensors and workspace stay until it is done.
  void* stream;
  void* workspace;  // aligned to 64; on the device for calls on a device. NULL: attune allocates for the call.
  size_t workspace_bytes;
  const attune_cover* cover;  // lists of attune_cover_new, or NULL
  // Your own loop: calls task(run, i, worker) once for each i in [0, count), best in this order, and returns when all
  // are done. Workers are numbered from 0, below `workers`; each runs one task at a time.
  void (*parallel_for)(void* user, int64_t count, attune_task task, void* run);
  // At most about ten times a second, with the share done in [0, 1], and with 1 at the end: on the calling thread, or,
  // while parallel_for runs, on any of its threads, one at a time. Anything but 0 stops the call, which then returns
  // the error `stopped`; what it was to write may be half written.
  int32_t (*progress)(void* user, double done);
  void* user;  // for both
  // Who holds which positions, or NULL: tensors of the call are then this rank's, and every rank makes the call.
  const attune_sharding* sharding;
} attune_with;

// Computes. `with` may be NULL.
ATTUNE_API attune_error* attune_run(const attune_attention* attention, const attune_call* call,
                                    const attune_with* with);
// Compiles and loads what the call will need, and tells how many bytes of working memory it takes, and how many its
// cover's lists take (0 where there are none). Reads no data. `with`, `workspace` and `cover` may be NULL.
ATTUNE_API attune_error* attune_prepare(const attune_attention* attention, const attune_call* call,
                                        const attune_with* with, size_t* workspace, size_t* cover);

// New keys and values, and the cache that they go to: see attune/append.h.
typedef struct {
  uint32_t size;
  int32_t line;  // of `file`, where the call is written, for errors
  const char* file;
  const attune_tensor *k_new, *v_new;        // [B, Hkv, n, D] and [B, Hkv, n, Dv], packed [T, Hkv, D] and [T, Hkv, Dv]
  const attune_tensor *k, *v;                // [B, Hkv, S, D] and [B, Hkv, S, Dv], or pools of pages
  const attune_tensor *page_table, *kv_len;  // as of attune_call; kv_len counts the new keys, which go to the ends
  const attune_tensor* cu_new;               // packed: the starts of the new rows
  double k_scale, v_scale;                   // what is stored is a new element divided by this; 0 means 1
} attune_new_keys;

// On the host, or put on with->stream of the device that holds the tensors. `with` may be NULL.
ATTUNE_API attune_error* attune_append(const attune_new_keys* keys, const attune_with* with);

// ---- Covers

// Lists once, on with->stream and in with->workspace, the tiles that the mask leaves to visit, for many forward calls
// like this one, which get it as with->cover. Gives NULL where no lists are needed: on the host, for packed sequences,
// and where a mask, such as a causal one, says it without. Contents of captures must stay as they are. The conditions
// are those of Attention::cover (attune/attention.h).
ATTUNE_API attune_error* attune_cover_new(const attune_attention* attention, const attune_call* call,
                                          const attune_with* with, attune_cover** cover);
ATTUNE_API void attune_cover_free(attune_cover* cover);

enum { ATTUNE_EMPTY = 0, ATTUNE_PARTIAL = 1, ATTUNE_FULL = 2 };

// What a mask keeps of each tile of one batch entry and head, for pictures and statistics: ATTUNE_EMPTY and ATTUNE_FULL
// are proven, ATTUNE_PARTIAL is all else.
typedef struct {
  uint32_t size;
  int32_t q_offset;
  int64_t q_len, kv_len;                 // from 1
  int64_t batch, head;                   // which ones, from 0
  int64_t tile_q, tile_kv;               // from 1; 1 x 1 is every pair
  const attune_tensor* const* captures;  // by slot, on the host
  const double* params;
  size_t n_captures, n_params;
} attune_picture;

// Gives rows = ceil(q_len / tile_q) and cols = ceil(kv_len / tile_kv), and writes tiles[row * cols + col] unless
// `tiles` is NULL; `bytes` is the room in `tiles`, at least rows * cols.
ATTUNE_API attune_error* attune_tiles(const attune_attention* attention, const attune_picture* picture, uint8_t* tiles,
                                      size_t bytes, int64_t* rows, int64_t* cols);

enum { ATTUNE_DRAW_TILES = 1, ATTUNE_DRAW_SCORE = 2, ATTUNE_DRAW_PROB = 4 };

// A picture for people. `picture` says of what; its q_len and kv_len must be those of q and k, if they are given.
typedef struct {
  uint32_t size;
  int32_t panels;                 // a sum of ATTUNE_DRAW_…; 0: what there is to see
  const attune_picture* picture;  // of which batch entry and head, with which tiles
  const attune_tensor *q, *k;     // on the host: scores are theirs. NULL: q . k is 0
} attune_drawing;

// Gives an SVG: which tiles the mask leaves, the score of each pair, and what becomes of it in the softmax. Readable on
// light and on dark pages.
ATTUNE_API attune_error* attune_draw(const attune_attention* attention, const attune_drawing* drawing, char** svg);

// ---- Ranks: one attention on many of them; docs/ranks.md, and what the words mean is in attune/ranks.h

// Bytes to or from another rank, as many in one piece.
typedef struct {
  int32_t peer;
  int32_t reserved;  // 0
  void* data;
  size_t bytes;
} attune_chunk;

// How this rank exchanges bytes with the others. Functions and `user` stay until each sharding that was made with them
// are freed, and are called on threads that call attune. They return 0, or anything else if they failed: the call then
// returns the error `ranks-transport`.
typedef struct {
  uint32_t size;
  int32_t rank, count;
  int32_t reserved;  // 0
  void* user;        // for all functions
  // Sends and receives parts, which keep their order between two ranks; the other rank names the same sizes. Returns
  // once all have arrived. Every rank calls it in the same order. NULL: for planning alone.
  int32_t (*exchange)(void* user, const attune_chunk* send, size_t n_send, const attune_chunk* receive,
                      size_t n_receive, void* stream);
  // Adds up `count` floats of so many bytes, 4 or 8, over all ranks, in place. NULL: made of `exchange`.
  int32_t (*sum)(void* user, void* values, size_t count, int32_t bytes_of_each, void* stream);
  void (*stop)(void* user);  // this rank fails: exchanges of the others are to fail soon. May be NULL.
} attune_transport;

enum { ATTUNE_ASSIGNMENT_BEST = 0, ATTUNE_CONTIGUOUS = 1, ATTUNE_ZIGZAG = 2, ATTUNE_GREEDY = 3 };
enum { ATTUNE_TRAVEL_BEST = 0, ATTUNE_GATHER = 1, ATTUNE_RING = 2, ATTUNE_HEADS = 3, ATTUNE_DECODE = 4 };

// Choices, and the machine that times are predicted for. What is 0 is as in Sharding::How.
typedef struct {
  uint32_t size;
  int32_t assignment, travel;
  int32_t groups;    // of key heads that travel together
  int64_t block;     // positions are sharded in blocks of so many
  int32_t per_node;  // ranks that share a host
  int32_t reserved;  // 0
  double own_gb_s, node_gb_s, tflops, memory_gb_s, latency_us;
} attune_how;

// For forward calls of `count` attentions: calls[i] is one of attentions[i], as one rank would make it. Of its tensors
// shapes and types count, and q, k, v and o may have no memory; only cu_q, cu_kv and what masks capture is read, on the
// host. Where `before` is given, its assignment, transport and choices are kept for these masks, and `with` and `how`
// are NULL; `how` may be NULL always. Ranks compare their plans by `exchange`.
ATTUNE_API attune_error* attune_sharding_new(const attune_attention* const* attentions, const attune_call* const* calls,
                                             size_t count, const attune_transport* with, const attune_how* how,
                                             const attune_sharding* before, attune_sharding** sharding);
ATTUNE_API void attune_sharding_free(attune_sharding* sharding);

// Positions from begin to before end: of the row of all tokens where sequences are packed.
typedef struct {
  int64_t begin, end;
} attune_range;

// Gives the number of ranges that a rank holds, in the order of its tensors, and writes as many as there is `room`
// for. `keys`: 0 of queries, 1 of keys.
ATTUNE_API attune_error* attune_sharding_of(const attune_sharding* sharding, int32_t rank, int32_t keys,
                                            attune_range* ranges, size_t room, size_t* count);
// The same of at.q of each of a rank's queries, for rotary embeddings.
ATTUNE_API attune_error* attune_sharding_positions(const attune_sharding* sharding, int32_t rank, int32_t* positions,
                                                   size_t room, size_t* count);
// Bytes that a forward of attentions[layer] brings to a rank.
ATTUNE_API attune_error* attune_sharding_received(const attune_sharding* sharding, int32_t rank, size_t layer,
                                                  size_t* bytes);
// A page: every assignment and schedule with its predicted time, and which was chosen.
ATTUNE_API attune_error* attune_sharding_explain(const attune_sharding* sharding, char** text);

// Ranks by NCCL, which is opened by name; attune/ranks.h tells more.
typedef struct {
  uint32_t size;
  int32_t rank, count;  // with an id: this rank, and how many there are
  int32_t device;       // this rank's
  const void* id;       // ATTUNE_NCCL_ID bytes, alike on all ranks, or
  void* communicator;   // an ncclComm_t of yours, which outlives the transport and every sharding that is made with it
  double seconds;       // how long a rank waits for the others; 0: 60
} attune_nccl;
enum { ATTUNE_NCCL_ID = 128 };

// Writes an id of ATTUNE_NCCL_ID bytes. One rank makes it, and hands it to the others by means of yours.
ATTUNE_API attune_error* attune_nccl_id(void* id);
// Fills a transport, whose size is set, for attune_sharding_new. All ranks of an id call it at once.
ATTUNE_API attune_error* attune_nccl_new(const attune_nccl* how, attune_transport* transport);
// Empties a transport that attune_nccl_new has filled. A Sharding that was made with it keeps what they need.
ATTUNE_API void attune_nccl_free(attune_transport* transport);

// ---- Kernels compiled beforehand

// Adds a bundle: from now on calls look for kernels in it too. Bytes in memory stay until the process ends.
ATTUNE_API attune_error* attune_load(const char* bundle);
ATTUNE_API attune_error* attune_load_bytes(const void* bytes, size_t count);

typedef struct {
  uint32_t size;
  int32_t jobs;          // so many at a time; 0: as many as there are CPUs
  const char* manifest;  // JSON, as the files of attune compile --manifest: docs/offline.md
  const char* name;      // what errors call the manifest; NULL: "manifest"
  const char* bundle;    // the file to write
  // On any thread, one at a time, after each row. Anything but 0 stops, with the error `stopped`, and writes nothing.
  int32_t (*progress)(void* user, double done, const char* row);
  void* user;
} attune_job;

// Compiles kernels for machines that need not be here into one file; ATTUNE_JIT=off forbids it. Gives JSON, if `report`
// is not NULL:
//   {"rows": 4, "kernels": 3, "facts": 1, "seconds": 2.5, "bundle": {"file": "…", "bytes": 12345}}
ATTUNE_API attune_error* attune_compile(const attune_job* job, char** report);

// ---- What attune does: kernels made, calls run, choices

typedef struct attune_watch attune_watch;

// Calls `fact` with JSON {"fact": "lowered" | "chosen" | "built" | "called" | "notice", …}, whose other members are
// those of the structs of attune/watch.h, on the thread that caused it, until attune_watch_off. When that returns,
// `fact` is not running, unless it is called from within `fact`.
ATTUNE_API attune_error* attune_watch_on(void (*fact)(void* user, const char* json), void* user, attune_watch** watch);
ATTUNE_API void attune_watch_off(attune_watch* watch);

// ---- Memory, for programs that have none on a device

// Zeroed memory with the type, shape and device of `like`, contiguous, aligned to 64.
ATTUNE_API attune_error* attune_alloc(const attune_tensor* like, attune_tensor** tensor);
ATTUNE_API void attune_dealloc(attune_tensor* tensor);
// Between tensors of one type and shape, both contiguous, on any devices. Done when it returns; waits for earlier work
// of `stream`.
ATTUNE_API attune_error* attune_copy(const attune_tensor* from, const attune_tensor* to, void* stream);

#ifdef __cplusplus
}
#endif

#endif
