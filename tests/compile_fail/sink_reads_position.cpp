// tests/compile_fail/sink_reads_position.cpp — a sink has no position
// expect: attune: a sink is called with (SinkAt at): it knows batch and head, not q and kv
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Sink sink = [](At at) { return f32(at.q); };
#else
const Sink sink = [](SinkAt at) { return f32(at.head); };
#endif
