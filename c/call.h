// c/call.h — a call of C as a Forward or a Backward
#pragma once

#include <vector>

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
