/// Random operators of LibTorch draw from the generator of the replica that runs them.
///
/// LibTorch has one default generator a process: thread replicas would race for its numbers, and
/// processes would all draw the same. So that torch::nn::Dropout, randn_like and their like work on
/// replicas, and give the same numbers as threads, as processes and in turn. Not for users:
/// Strategy::run has it.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <mutex>

namespace tutti::detail {

/// While it lives, operators of this thread on the CPU that are given no generator draw from
/// ReplicaContext::current()'s. Others cost what they always do.
class OwnRandomNumbers {
 public:
  OwnRandomNumbers();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

/// While it lives, operators of this thread that are given no generator draw as one would that has
/// just been seeded with `key`: the CPU's, and that of `device`. Generators are behind it as they
/// were before. They nest, those of one device. Thread rule: on the stack; of a device one at a
/// time, others wait, and nobody else draws from its default generator meanwhile.
class NumbersOfKey {
 public:
  /// c10::Error where `device` has no generator, or it cannot be seeded now; nothing has changed.
  NumbersOfKey(uint64_t key, at::Device device);
  NumbersOfKey(const NumbersOfKey&) = delete;
  ~NumbersOfKey();

 private:
  void lend(uint64_t key, at::Device device);

  c10::impl::IncludeDispatchKeyGuard guard_;
  at::Generator own_;
  at::Generator* outer_ = nullptr;
  // Kernels of devices draw from its default generator by themselves, so that is lent.
  std::unique_lock<std::recursive_mutex> turn_;
  at::Generator lent_;
  at::Tensor state_;
};

/// What operators of this thread on the CPU draw from when they are given no generator.
at::Generator generator_of_operators();

}  // namespace tutti::detail
