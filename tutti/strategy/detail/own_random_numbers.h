/// Random operators of LibTorch draw from the generator of the replica that runs them.
///
/// LibTorch has one default generator a process: thread replicas would race for its numbers, and
/// processes would all draw the same. So that torch::nn::Dropout, randn_like and their like work on
/// replicas, and give the same numbers as threads, as processes and in turn. Not for users:
/// Strategy::run has it.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tutti::detail {

/// While it lives, operators of this thread on the CPU that are given no generator draw from
/// ReplicaContext::current()'s. Others cost what they always do.
class OwnRandomNumbers {
 public:
  OwnRandomNumbers();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace tutti::detail
