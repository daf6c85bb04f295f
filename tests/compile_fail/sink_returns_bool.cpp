// tests/compile_fail/sink_returns_bool.cpp — a sink that returns a condition
// expect: attune: a sink returns Float, e.g. logits[at.head]
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Sink sink = [](SinkAt at) { return at.head > 2; };
#else
const Sink sink = [](SinkAt at) { return f32(at.head > 2); };
#endif
