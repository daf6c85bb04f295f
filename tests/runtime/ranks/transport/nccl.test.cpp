// tests/runtime/ranks/transport/nccl.test.cpp — NCCL that is missing, or too old
#include "runtime/ranks/transport/communicator.h"

#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/refusal.h"

using namespace attune::runtime::ranks;
using attune::tests::golden_error;
using attune::tests::refusal;

TEST_CASE("a NCCL that cannot be used is an Error that tells how to get one", "[ranks]") {
  constexpr const char* nowhere[] = {"libattune-has-no-nccl.so.2", "libattune-has-no-nccl.so"};
  golden_error("nccl.missing", refusal([&] { find_nccl(nowhere, true); }).what());
  golden_error("nccl.not-loaded", refusal([&] { find_nccl(nowhere, false); }).what());
  constexpr const char* another[] = {"libattune-has-no-nccl.so.2", "libc.so.6"};
  golden_error("nccl.old", refusal([&] { find_nccl(another, false); }).what());
}
