// c/ranks.h — the definition of attune_sharding, and attune's transports as C transports
#pragma once

#include <attune/c.h>
#include <attune/ranks.h>

struct attune_sharding {
  attune::Sharding sharding;
};

namespace attune::c {

/// The NCCL transport inside a C transport that attune_nccl_new has filled; null for any other C transport.
const Transport* nccl_of(const attune_transport& given);

}  // namespace attune::c
