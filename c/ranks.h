// c/ranks.h — what an attune_sharding is, and transports of ours as those of C
#pragma once

#include <attune/c.h>
#include <attune/ranks.h>

struct attune_sharding {
  attune::Sharding sharding;
};

namespace attune::c {

/// The transport by NCCL that attune_nccl_new has put into one of C, or null if its functions are others.
const Transport* nccl_of(const attune_transport& given);

}  // namespace attune::c
