// python/core/jax/xla.h — the structs that XLA passes to a handler, as far as attune reads them
#pragma once

#include <cstddef>
#include <cstdint>

// XLA calls a handler with C structs of a stable layout: new members come at the end, and any other change raises the
// major version. This file repeats the members that attune reads, so that neither a build nor a wheel needs JAX:
// jaxlib's headers come only with jaxlib, and each version has its own.
// tests/python/in_jax/test_jax_layout.py compares every size and offset with the headers of the jaxlib that is
// installed.
namespace attune::python::xla {

struct Extension {
  std::size_t size;
  std::int32_t type;  // 1: Metadata
  Extension* next;
};
struct Version {
  std::size_t size;
  Extension* extensions;
  std::int32_t major, minor;
};
struct Metadata {
  std::size_t size;
  Version version;
  std::uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};
struct Error;  // XLA's
struct NewError {
  std::size_t size;
  Extension* extensions;
  const char* message;
  std::int32_t code;  // 3: invalid argument
};
struct DestroyError {
  std::size_t size;
  Extension* extensions;
  Error* error;
};
struct Context;  // XLA's
struct GetStream {
  std::size_t size;
  Extension* extensions;
  Context* context;
  void* stream;
};
struct GetDevice {
  std::size_t size;
  Extension* extensions;
  Context* context;
  std::int32_t device;
};
struct Allocate {
  std::size_t size;
  Extension* extensions;
  Context* context;
  std::size_t bytes, alignment;  // XLA refuses an alignment above 16
  void* data;
};
struct Free {
  std::size_t size;
  Extension* extensions;
  Context* context;
  std::size_t bytes;
  void* data;
};
struct Api {
  std::size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*new_error)(NewError*);
  void (*error_message)(void*);
  void (*destroy_error)(DestroyError*);
  void* register_handler;
  Error* (*get_stream)(GetStream*);
  void* types_and_states[4];
  Error* (*allocate)(Allocate*);
  Error* (*free)(Free*);
  void* tasks_and_runs[6];
  Error* (*get_device)(GetDevice*);
};
struct Buffer {
  std::size_t size;
  Extension* extensions;
  std::int32_t dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};
struct Buffers {  // the arguments, or the results
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  std::int32_t* types;
  Buffer** buffers;
};
struct Bytes {
  const char* begin;
  std::size_t size;
};
struct Attributes {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  std::int32_t* types;  // 4: Bytes
  Bytes** names;
  void** values;
};
struct Frame {
  std::size_t size;
  Extension* extensions;
  const Api* api;
  Context* context;
  std::int32_t stage;
  Buffers arguments, results;
  Attributes attributes;
};

constexpr std::int32_t metadata = 1, invalid_argument = 3, bytes = 4;

}  // namespace attune::python::xla
