/// OnHost: while it lives, run() of strategy tpu computes on the host, for what the library itself
/// has to do on each replica there. Not for users. Thread rule: that of Strategy.
#pragma once

#include <memory>
#include <vector>

#include "tutti/strategy/strategy.h"

namespace tutti::detail {

class OnHost {
 public:
  explicit OnHost(const Strategy& strategy);
  ~OnHost();
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;

  /// Those here, in rank order.
  const std::vector<ReplicaContext>& replicas() const;

 private:
  std::shared_ptr<StrategyState> state_;
  bool before_;
};

}  // namespace tutti::detail
