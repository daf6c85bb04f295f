// runtime/ranks/ranks.h — the plan of a Sharding, the transport, and state that is kept between calls
#pragma once

#include <memory>
#include <mutex>
#include <set>

#include "runtime/ranks/plan/plan.h"

namespace attune::runtime::ranks {

class DeviceState;

}  // namespace attune::runtime::ranks

namespace attune::detail {

struct Ranks : runtime::ranks::Plan {
  /// Ranks compare their plans. `before`: a plan whose assignment is kept, or null.
  Ranks(std::span<const Attention> attentions, std::span<const Forward> wholes, Transport with,
        const Sharding::How& asked, const Ranks* before);

  Transport transport;
  /// Digests of calls on which the ranks have already agreed.
  mutable std::mutex agreed_mutex;
  mutable std::set<ir::Digest> agreed;
  /// State that calls on a device keep between them; null before the first call.
  mutable std::mutex room_mutex;
  mutable std::shared_ptr<runtime::ranks::DeviceState> device_state;
};

}  // namespace attune::detail
