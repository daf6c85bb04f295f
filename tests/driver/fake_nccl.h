// tests/driver/fake_nccl.h — a libnccl.so.2 whose ranks are threads of one process, with faults that tests ask for
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/ranks/transport/communicator.h"

namespace attune::tests::fake_nccl {

/// The requests to a rank's communicators since `forget`, in order: "send 8 to 1", "abort", ….
std::vector<std::string> calls(int rank);
void forget();

/// From its next call on, the function returns this number of an ncclResult_t; 0: it works again.
void refuse(std::string_view function, int result);
/// The same for the result that communicators report for work in progress.
void report(int result);
/// Whether a communicator that is destroyed or aborted waits for all others of its world, as those of processes do.
void wait_for_all(bool wait);
/// The text that ncclGetLastError gives.
void say(std::string_view last);

/// Communicators that were neither destroyed nor aborted.
int live();
/// All ranks' communicators of one world, as a program makes them by itself.
std::vector<runtime::ranks::NcclComm> communicators(int count, int device);

}  // namespace attune::tests::fake_nccl
