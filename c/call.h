// c/call.h — a call of C as a Forward or a Backward, and the definition of attune_sharding
#pragma once

#include <vector>

#include <attune/c.h>
#include <attune/ranks.h>

#include "c/attention.h"

namespace attune::c {

/// A call with the memory that its spans refer to.
struct Call {
  std::vector<Tensor> captures;
  std::vector<double> params;
  bool backward = false;
  Line at{};
  Forward forward{};
  Backward back{};

  Call(const attune_attention& attention, const attune_call* given, const char* function);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  template <class Into>
  void fill_both(const attune_call& from, Into& into);
  void fill(const attune_call& from, Forward& into);
  void fill(const attune_attention& attention, const attune_call& from, Backward& into);
};

}  // namespace attune::c

struct attune_sharding {
  attune::Sharding sharding;
};

namespace attune::c {

/// The NCCL transport inside a C transport that attune_nccl_new has filled; null for any other C transport.
const Transport* nccl_of(const attune_transport& given);

}  // namespace attune::c
