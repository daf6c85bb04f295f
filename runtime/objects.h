// runtime/objects.h — where object code is kept between compiles: by key, in memory
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/single.h"

namespace attune::runtime {

/// Bytes by key. What a store gives was built by the same key, on this machine or another; it knows nothing else of it.
class Objects {
 public:
  virtual ~Objects() = default;
  using Bytes = std::shared_ptr<const std::string>;
  /// What is kept under `key`, else what `build` gives, kept from then on. One build per key at a time.
  virtual Bytes get(const std::string& key, const std::function<std::string()>& build) = 0;
};

/// For the life of the process.
class MemoryObjects : public Objects {
 public:
  Bytes get(const std::string& key, const std::function<std::string()>& build) override {
    return kept_.get(key, [&] { return std::make_shared<const std::string>(build()); });
  }

 private:
  Single<std::string, std::string> kept_;
};

/// The process's own.
Objects& objects();

}  // namespace attune::runtime
