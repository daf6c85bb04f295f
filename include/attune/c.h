// include/attune/c.h — the C ABI of libattune.so: attentions from text, calls on borrowed tensors, errors as values
#ifndef ATTUNE_C_H
#define ATTUNE_C_H

// For every language that can call C99; one file, for tools that make bindings of a header. The C++ headers and docs/
// define the terms; docs/c.md has a first program.
//
// Errors: a function that can fail returns NULL, or an error that its caller reads and frees. A function that fails
// leaves its outputs unchanged, unless its comment says otherwise. No exception leaves the library.
//
// Structs: fill them with zeros, set `size` to sizeof the struct, then set what you need: zero, or NULL, always means
// "not given". Later versions append members and functions and change no existing one, so a program built with this
// header works with every later libattune.so.0. Structs without a `size` stay as they are.
//
// Lifetime: arguments are borrowed for the duration of the call. The caller frees each object that a function returns,
// with the function declared next to it and in any order: an object keeps alive whatever it needs. NULL may always be
// freed.
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

// The version of this header. attune_version() returns the library's version. 0.1.0 is 100.
#define ATTUNE_VERSION_MAJOR 0
#define ATTUNE_VERSION_MINOR 1
#define ATTUNE_VERSION_PATCH 0
#define ATTUNE_VERSION (ATTUNE_VERSION_MAJOR * 10000 + ATTUNE_VERSION_MINOR * 100 + ATTUNE_VERSION_PATCH)

// ---- Tensors: DLPack's DLTensor, field by field. If dlpack.h was included before this header, attune_tensor is
// DLTensor itself.

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

// The contents of an error. The error owns the texts; a text that it does not have is "", never NULL.
typedef struct {
  uint32_t size;
  int32_t bug;          // 1: a defect of attune, please report it; then only `message` is set, and code is "bug"
  int32_t line;         // of the source file `name`; 0: none
  const char* code;     // stable: an anchor of docs/errors.md
  const char* problem;  // what is wrong
  const char* name;     // where: a source file, an expression's name, a file, an option
  const char* text;     // the expression that is wrong, or ""
  const char* why;      // the facts that collide
  const char* fix;      // how to fix it
  const char* message;  // all of the above as a page with a caret, as a terminal would show it
  size_t begin, end;    // the wrong part of `text` in bytes, half open; begin == end: none
} attune_said;

// Fills `*said`, whose `size` the caller has set.
ATTUNE_API void attune_error_read(const attune_error* error, attune_said* said);
ATTUNE_API void attune_error_free(attune_error* error);

// ---- The library and the machine

// The library's version, encoded like ATTUNE_VERSION.
ATTUNE_API uint32_t attune_version(void);
// Frees a text that a function of this header returned.
ATTUNE_API void attune_string_free(char* text);
// Sets an option of docs/debugging.md, e.g. "ATTUNE_LOG", and so overrides the process's environment; NULL removes the
// override. Options are read once: after the first call that makes an attention, compiles or describes the machine,
// this function returns the error `option-late`. ATTUNE_JIT alone may be set at any time.
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
// by its role, e.g. "score".
typedef struct {
  const char* text;  // NULL: none
  const char* file;
  int32_t line;
} attune_text;

// Declares a captured tensor or a parameter, which calls bind. Its index in the array is its slot.
typedef struct {
  const char* name;
  int32_t kind;  // 'f', 'i' or 'b': read as Float, Int or Bool. A parameter is 'f' or 'i'.
  int32_t rank;  // 0 to 4; 0 for a parameter
} attune_name;

// A named sub-expression. It may use captures, parameters and the lets before it.
typedef struct {
  const char* name;
  attune_text value;
} attune_let;

enum { ATTUNE_AUTOMATIC = 0, ATTUNE_ENGINE_CPU = 1, ATTUNE_ENGINE_ORACLE = 2, ATTUNE_ENGINE_CUDA = 3 };
// The target of an emulated GPU, for tensors on the host: "sm_80" or "sm_90a", optionally followed by ":seed=N" and
// ":sms=N". See docs/debugging.md.
ATTUNE_API attune_error* attune_emulated(const char* gpu, int32_t* target);

typedef struct {
  uint32_t size;
  int32_t target;    // ATTUNE_AUTOMATIC: the engine for the device that holds q; or of attune_emulated
  int32_t exact;     // GPU kernels: 1 exact, -1 not exact, 0 depends on the type of q
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

// A page for people: the expressions, the simplifications and their reasons, levels, derivatives, and the work that the
// softmax makes unnecessary.
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
// starts in cu_q and cu_kv (i32, [B + 1]), on the host or on q's device. A forward reads q, k and v and writes o, and
// lse and max if they are given. A backward reads q, k, v, grad_o, grad_lse if it is given, and o and lse (both or
// neither; without them the forward is computed again). It writes each of dq, dk, dv and captured_grads that is given.
// Gradients are overwritten, not added to.
typedef struct {
  uint32_t size;
  int32_t pass;      // ATTUNE_FORWARD or ATTUNE_BACKWARD
  int32_t q_offset;  // at.q of the first query
  int32_t line;      // the line of `file` where the call is written, for errors
  const char* file;
  int64_t max_q_len, max_kv_len;  // the longest packed sequence; must be given when cu_q and cu_kv are on a device
  const attune_tensor *q, *k, *v, *o, *lse, *max, *cu_q, *cu_kv;
  const attune_tensor *grad_o, *grad_lse, *dq, *dk, *dv;
  // Indexed by slot, one for each declared capture. A slot that no expression reads may be NULL.
  const attune_tensor* const* captures;
  const attune_tensor* const* captured_grads;  // NULL, or indexed by slot; the gradient of a NULL entry is not computed
  const double* params;
  size_t n_captures, n_captured_grads, n_params;
  // For a forward only, which may describe its keys separately from its queries: see Forward in attune/attention.h.
  const attune_tensor* kv_len;     // i32 [B], on q's device: keys of each entry; k and v may have room for more
  const attune_tensor* q_offsets;  // i32 [B], on q's device: at.q of each entry's first query, instead of q_offset
  // i32 [B, n], on q's device: k and v are pools [pages, Hkv, page_size, D], and key i of entry b is row i % page_size
  // of page page_table[b, i / page_size].
  const attune_tensor* page_table;
  // Results over other keys, which this call merges with its own; both or neither. They may be o and lse themselves.
  const attune_tensor *o_before, *lse_before;
  int64_t fixed_split_size;  // if not 0, an entry's bits do not depend on other entries; a multiple of 128
  int32_t kv_offset;         // at.kv of the first key
  int32_t reserved;          // 0
  // For a backward over ranks. 1: captured_grads sum over this rank's queries only; 0: over the queries of all ranks.
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
  int32_t workers;  // upper bound on threads, including the calling one; 0: ATTUNE_THREADS. Required with parallel_for.
  // For calls on a device: a CUstream of the device of q; NULL is the default one. The call returns once it is
  // enqueued; its tensors and its workspace must stay valid until it is done.
  void* stream;
  void* workspace;  // aligned to 64 bytes; on the device for calls on a device. NULL: attune allocates for the call.
  size_t workspace_bytes;
  const attune_cover* cover;  // lists of attune_cover_new, or NULL
  // Your own loop: calls task(run, i, worker) once for each i in [0, count), best in this order, and returns when all
  // are done. Workers are numbered from 0, below `workers`; each runs one task at a time.
  void (*parallel_for)(void* user, int64_t count, attune_task task, void* run);
  // Called at most about ten times a second with the fraction done, in [0, 1], and with 1 at the end: on the calling
  // thread, or, while parallel_for runs, on any of its threads, one at a time. If it returns anything but 0, the call
  // stops and returns the error `stopped`; its outputs may then be half written.
  int32_t (*progress)(void* user, double done);
  void* user;  // passed to parallel_for and to progress
  // Which rank holds which positions. If it is not NULL, the call's tensors are this rank's, and every rank makes the
  // call.
  const attune_sharding* sharding;
} attune_with;

// Computes. `with` may be NULL.
ATTUNE_API attune_error* attune_run(const attune_attention* attention, const attune_call* call,
                                    const attune_with* with);
// The number of threads, at least 1, among which it pays to divide a dense forward on the host: what the call gets if
// `workers` is 0 and ATTUNE_THREADS is no less. Reads no tensor data, and checks nothing.
ATTUNE_API int32_t attune_worthwhile_workers(const attune_call* call);
// Compiles and loads the kernels that the call needs. Returns the bytes of working memory that the call takes, and the
// bytes of its cover's lists (0 if there are none). Reads no tensor data. `with`, `workspace` and `cover` may be NULL.
ATTUNE_API attune_error* attune_prepare(const attune_attention* attention, const attune_call* call,
                                        const attune_with* with, size_t* workspace, size_t* cover);
// Starts to compile them on another thread, and returns. A call that comes earlier waits for its kernels; mistakes are
// reported by the call.
ATTUNE_API attune_error* attune_prepare_async(const attune_attention* attention, const attune_call* call);
// Returns when all kernels that attune_prepare_async has asked for so far are compiled, and those that take over from
// kernels that were compiled sooner, and the callbacks that report them have run.
ATTUNE_API void attune_wait(void);
// Returns when the kernels that are being compiled are done, and compiles no others that attune_prepare_async has asked
// for. A process that ends does the same; an interpreter that ends must call it before.
ATTUNE_API void attune_cancel(void);

// New keys and values, and the cache that they are appended to: see attune/append.h.
typedef struct {
  uint32_t size;
  int32_t line;  // the line of `file` where the call is written, for errors
  const char* file;
  const attune_tensor *k_new, *v_new;        // [B, Hkv, n, D] and [B, Hkv, n, Dv], packed [T, Hkv, D] and [T, Hkv, Dv]
  const attune_tensor *k, *v;                // [B, Hkv, S, D] and [B, Hkv, S, Dv], or pools of pages
  const attune_tensor *page_table, *kv_len;  // as in attune_call; kv_len includes the new keys, the last of each entry
  const attune_tensor* cu_new;               // packed: the starts of the new rows
  double k_scale, v_scale;                   // each new element is divided by this before it is stored; 0 means 1
  const attune_tensor* slots;  // instead of page_table, kv_len and cu_new: i32 or i64 [T], the place of each packed row
} attune_new_keys;

// Runs on the host, or is enqueued on with->stream of the device that holds the tensors. `with` may be NULL.
ATTUNE_API attune_error* attune_append(const attune_new_keys* keys, const attune_with* with);

// ---- Covers

// Lists once, on with->stream and in with->workspace, the tiles that the mask leaves to visit. Many forward calls like
// this one can then use the lists, as with->cover. Returns NULL where no lists are needed: on the host, for packed
// sequences, and for a mask that needs none, such as a causal one. The captured tensors must keep their contents.
// Attention::cover (attune/attention.h) has the conditions.
ATTUNE_API attune_error* attune_cover_new(const attune_attention* attention, const attune_call* call,
                                          const attune_with* with, attune_cover** cover);
ATTUNE_API void attune_cover_free(attune_cover* cover);

enum { ATTUNE_EMPTY = 0, ATTUNE_PARTIAL = 1, ATTUNE_FULL = 2 };

// What a mask keeps of each tile of one batch entry and head, for pictures and statistics: ATTUNE_EMPTY and ATTUNE_FULL
// are proven; every other tile is ATTUNE_PARTIAL.
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

// Returns rows = ceil(q_len / tile_q) and cols = ceil(kv_len / tile_kv), and writes tiles[row * cols + col] unless
// `tiles` is NULL; `bytes` is the size of `tiles`, at least rows * cols.
ATTUNE_API attune_error* attune_tiles(const attune_attention* attention, const attune_picture* picture, uint8_t* tiles,
                                      size_t bytes, int64_t* rows, int64_t* cols);

enum { ATTUNE_DRAW_TILES = 1, ATTUNE_DRAW_SCORE = 2, ATTUNE_DRAW_PROB = 4 };

// A picture for people. The q_len and kv_len of `picture` must equal the lengths of q and k, if q and k are given.
typedef struct {
  uint32_t size;
  int32_t panels;                 // a sum of ATTUNE_DRAW_…; 0: every panel that the attention has
  const attune_picture* picture;  // the batch entry, the head and the tiles to draw
  const attune_tensor *q, *k;     // on the host: scores are computed from them. NULL: q . k is 0
} attune_drawing;

// Returns an SVG: the tiles that the mask leaves, the score of each pair, and its probability after the softmax.
// Readable on light and on dark pages.
ATTUNE_API attune_error* attune_draw(const attune_attention* attention, const attune_drawing* drawing, char** svg);

// ---- Ranks: one attention on many ranks; see docs/ranks.md, and attune/ranks.h for the terms

// Contiguous bytes that are sent to or received from another rank.
typedef struct {
  int32_t peer;
  int32_t reserved;  // 0
  void* data;
  size_t bytes;
} attune_chunk;

// How this rank exchanges bytes with the others. The functions and `user` must stay valid until every sharding that was
// made with them is freed. attune calls the functions on threads that called attune. They return 0, or anything else on
// failure: the attune call then returns the error `ranks-transport`.
typedef struct {
  uint32_t size;
  int32_t rank, count;
  int32_t reserved;  // 0
  void* user;        // for all functions
  // Sends and receives chunks, whose order between two ranks is kept; the other rank passes the same sizes. Returns
  // once all chunks have arrived. Every rank makes the same exchanges in the same order. NULL: for planning only.
  int32_t (*exchange)(void* user, const attune_chunk* send, size_t n_send, const attune_chunk* receive,
                      size_t n_receive, void* stream);
  // Adds up `count` floats of `bytes_of_each` bytes, 4 or 8, over all ranks, in place. NULL: attune uses `exchange`.
  int32_t (*sum)(void* user, void* values, size_t count, int32_t bytes_of_each, void* stream);
  void (*stop)(void* user);  // this rank failed: exchanges of other ranks should fail soon. May be NULL.
} attune_transport;

enum { ATTUNE_ASSIGNMENT_BEST = 0, ATTUNE_CONTIGUOUS = 1, ATTUNE_ZIGZAG = 2, ATTUNE_GREEDY = 3 };
enum { ATTUNE_TRAVEL_BEST = 0, ATTUNE_GATHER = 1, ATTUNE_RING = 2, ATTUNE_HEADS = 3, ATTUNE_DECODE = 4 };

// Choices, and the machine that times are predicted for. A member that is 0 has the default of Sharding::How.
typedef struct {
  uint32_t size;
  int32_t assignment, travel;
  int32_t groups;    // number of groups of key heads; the heads of a group travel together
  int64_t block;     // positions per block that is sharded
  int32_t per_node;  // ranks that share a host
  int32_t reserved;  // 0
  double own_gb_s, node_gb_s, tflops, memory_gb_s, latency_us;
} attune_how;

// For forward calls of `count` attentions: calls[i] is one of attentions[i], as one rank would make it. Only the shapes
// and types of its tensors matter, and q, k, v and o may have no memory; only cu_q, cu_kv and the tensors that masks
// capture are read, on the host. If `before` is given, its assignment, transport and choices are kept for these masks,
// and `with` and `how` are NULL; `how` may always be NULL. Ranks compare their plans through `exchange`.
ATTUNE_API attune_error* attune_sharding_new(const attune_attention* const* attentions, const attune_call* const* calls,
                                             size_t count, const attune_transport* with, const attune_how* how,
                                             const attune_sharding* before, attune_sharding** sharding);
ATTUNE_API void attune_sharding_free(attune_sharding* sharding);

// Positions in [begin, end). If sequences are packed, they are positions in the packed row of all tokens.
typedef struct {
  int64_t begin, end;
} attune_range;

// Returns the number of ranges that a rank holds, and writes the first `room` of them, in the order of the rank's
// tensors. `keys`: 0 for queries, 1 for keys.
ATTUNE_API attune_error* attune_sharding_of(const attune_sharding* sharding, int32_t rank, int32_t keys,
                                            attune_range* ranges, size_t room, size_t* count);
// The same for at.q of each of a rank's queries, for rotary embeddings.
ATTUNE_API attune_error* attune_sharding_positions(const attune_sharding* sharding, int32_t rank, int32_t* positions,
                                                   size_t room, size_t* count);
// Bytes that a rank receives in a forward of attentions[layer].
ATTUNE_API attune_error* attune_sharding_received(const attune_sharding* sharding, int32_t rank, size_t layer,
                                                  size_t* bytes);
// A page: every assignment and schedule with its predicted time, and which was chosen.
ATTUNE_API attune_error* attune_sharding_explain(const attune_sharding* sharding, char** text);

// Ranks that communicate by NCCL, whose library is opened by name; attune/ranks.h has the details.
typedef struct {
  uint32_t size;
  int32_t rank, count;  // with an id: this rank and the number of ranks
  int32_t device;       // the device of this rank
  const void* id;       // ATTUNE_NCCL_ID bytes, equal on all ranks, or
  void* communicator;   // your ncclComm_t, which must outlive the transport and every sharding that is made with it
  double seconds;       // how long a rank waits for the others; 0: 60
} attune_nccl;
enum { ATTUNE_NCCL_ID = 128 };

// Writes an id of ATTUNE_NCCL_ID bytes. One rank makes the id and sends it to the others by your own means.
ATTUNE_API attune_error* attune_nccl_id(void* id);
// Fills a transport, whose `size` is set, for attune_sharding_new. All ranks of an id call this function at the same
// time.
ATTUNE_API attune_error* attune_nccl_new(const attune_nccl* how, attune_transport* transport);
// Frees a transport that attune_nccl_new has filled. A sharding that was made with it keeps what it needs.
ATTUNE_API void attune_nccl_free(attune_transport* transport);

// ---- Kernels compiled beforehand

// Adds a bundle: from now on calls look for kernels in it too. Bytes in memory stay until the process ends.
ATTUNE_API attune_error* attune_load(const char* bundle);
ATTUNE_API attune_error* attune_load_bytes(const void* bytes, size_t count);

typedef struct {
  uint32_t size;
  int32_t jobs;          // kernels compiled at a time; 0: one per CPU
  const char* manifest;  // JSON, in the format of attune compile --manifest: docs/offline.md
  const char* name;      // the manifest's name in errors; NULL: "manifest"
  const char* bundle;    // the file to write
  // Called after each row, on any thread, one call at a time. If it returns anything but 0, attune_compile stops with
  // the error `stopped` and writes nothing.
  int32_t (*progress)(void* user, double done, const char* row);
  void* user;
} attune_job;

// Compiles kernels into one file, also for machines other than this one; ATTUNE_JIT=off forbids it. Returns JSON, if
// `report` is not NULL:
//   {"rows": 4, "kernels": 3, "facts": 1, "seconds": 2.5, "bundle": {"file": "…", "bytes": 12345}}
ATTUNE_API attune_error* attune_compile(const attune_job* job, char** report);

// ---- What attune does: kernels made, calls run, choices

typedef struct attune_watch attune_watch;

// Calls `fact` with JSON {"fact": "lowered" | "chosen" | "built" | "called" | "notice", …}, whose other members are the
// members of the struct in attune/watch.h, on the thread that caused the event, until attune_watch_off. After
// attune_watch_off returns, `fact` is not running, unless attune_watch_off was called from within `fact`.
ATTUNE_API attune_error* attune_watch_on(void (*fact)(void* user, const char* json), void* user, attune_watch** watch);
ATTUNE_API void attune_watch_off(attune_watch* watch);
// The same for some facts alone: their names, separated by commas. This also takes "compiling": a call waits for its
// kernels. It is reported on another thread, from a second after the wait began, about ten times a second, and once
// when it is over, before the call goes on; `fact` may not wait for the call.
ATTUNE_API attune_error* attune_watch_facts(const char* facts, void (*fact)(void* user, const char* json), void* user,
                                            attune_watch** watch);

// ---- Memory, for programs that have none on a device

// Zeroed, contiguous memory with the type, shape and device of `like`, aligned to 64 bytes.
ATTUNE_API attune_error* attune_alloc(const attune_tensor* like, attune_tensor** tensor);
ATTUNE_API void attune_dealloc(attune_tensor* tensor);
// Copies between two contiguous tensors of the same type and shape, on any devices. The copy is done when the function
// returns; it waits for earlier work of `stream`.
ATTUNE_API attune_error* attune_copy(const attune_tensor* from, const attune_tensor* to, void* stream);

#ifdef __cplusplus
}
#endif

#endif
