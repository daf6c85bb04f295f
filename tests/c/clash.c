// tests/c/clash.c — a process that has loaded another LLVM with global symbols still compiles with attune
#include <attune/c.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// clash LIBATTUNE LIBLLVM: both are loaded here, the other LLVM first.
typedef attune_error* (*new_function)(const attune_what*, attune_attention**);
typedef attune_error* (*run_function)(const attune_attention*, const attune_call*, const attune_with*);
typedef attune_error* (*option_function)(const char*, const char*);

// A function of a library: a void* of data, as POSIX gives it.
static void found(void* library, const char* name, void* function) {
  void* const at = dlsym(library, name);
  if (!at) printf("no %s: %s\n", name, dlerror());
  memcpy(function, &at, sizeof at);
}

int main(int count, char** words) {
  if (count != 3) return 1;
  if (!dlopen(words[2], RTLD_NOW | RTLD_GLOBAL)) {
    printf("[skip] no other LLVM: %s\n", dlerror());
    return 0;
  }
  void* const attune = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (!attune) {
    printf("%s\n", dlerror());
    return 1;
  }
  new_function make;
  run_function run;
  option_function option;
  found(attune, "attune_new", &make);
  found(attune, "attune_run", &run);
  found(attune, "attune_option", &option);
  if (option("ATTUNE_CACHE", "off")) return 1;
  attune_what what;
  memset(&what, 0, sizeof what);
  what.size = sizeof what;
  what.score.text = "30.0f * tanh((s + exp2(-f32(h)) * f32(kv - q)) / 30.0f)";
  what.mask.text = "kv <= q";
  attune_attention* attention = NULL;
  if (make(&what, &attention)) return 1;
  float q[16 * 8], o[16 * 8];
  for (int i = 0; i < 16 * 8; ++i) q[i] = (float)(i % 7) - 3;
  int64_t shape[] = {1, 1, 16, 8};
  attune_tensor in;
  memset(&in, 0, sizeof in);
  in.device.device_type = ATTUNE_CPU;
  in.ndim = 4;
  in.dtype.code = ATTUNE_FLOAT;
  in.dtype.bits = 32;
  in.dtype.lanes = 1;
  in.shape = shape;
  in.data = q;
  attune_tensor out = in;
  out.data = o;
  attune_call call;
  memset(&call, 0, sizeof call);
  call.size = sizeof call;
  call.q = call.k = call.v = &in;
  call.o = &out;
  if (run(attention, &call, NULL)) return 1;
  // The first query sees itself alone.
  if (memcmp(o, q, 8 * sizeof(float)) != 0) return 1;
  puts("ok");
  return 0;
}
