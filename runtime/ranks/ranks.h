// runtime/ranks/ranks.h — the plan of a Sharding with what ranks meet by: their transport, and what calls keep between
// them
#pragma once

#include <memory>
#include <mutex>
#include <set>

#include "runtime/ranks/plan/plan.h"

namespace attune::runtime::ranks {

class DeviceRoom;

}  // namespace attune::runtime::ranks

namespace attune::detail {

struct Ranks : runtime::ranks::Plan {
  /// Ranks compare their plans. `before`: whose assignment is kept, or null.
  Ranks(std::span<const Attention> attentions, std::span<const Forward> wholes, Transport with,
        const Sharding::How& asked, const Ranks* before);

  Transport transport;
  /// The digests of calls on which the ranks agreed before.
  mutable std::mutex agreed_mutex;
  mutable std::set<ir::Digest> agreed;
  /// What calls on a device keep between them; null before the first one.
  mutable std::mutex room_mutex;
  mutable std::shared_ptr<runtime::ranks::DeviceRoom> room;
};

}  // namespace attune::detail
