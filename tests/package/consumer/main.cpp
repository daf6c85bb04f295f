// tests/package/consumer/main.cpp — a user's program: the public headers compile and the libraries link
#include <attune/attune.h>

#include <cstdio>

int main() {
  const attune::Mask causal = [](attune::At at) { return at.q >= at.kv; };
  const attune::Mask near = [](attune::At at) { return at.q - at.kv < 1024; };
  const attune::Attention attention{.mask = causal && near};
  std::puts("ok");
}
