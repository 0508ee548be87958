/// Ranks of a TuttiBackend as threads, on the CPU or on the fake CUDA.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "python/src/backend.h"
#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/hier.h"

namespace tutti::python::test {

/// On the host, not to be added without rounding.
inline at::Tensor numbers_of(int who, at::IntArrayRef sizes) {
  const at::Tensor flat = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return (flat * 7 % 23 - 10 + 3 * who).view(sizes) / 10;
}

/// A rank as its test sees it.
struct Rank {
  TuttiBackend& backend;
  const int rank, size;
  const at::Device device;
  const bool strided;  ///< tensors are not contiguous

  /// numbers_of(rank + 1), or `of`, ten times so much where they are whole ones; copied there by
  /// the current queue.
  at::Tensor data(at::IntArrayRef sizes, at::ScalarType type = at::kFloat, int of = -1) const {
    const at::Tensor numbers = numbers_of(of < 0 ? rank + 1 : of, sizes);
    const at::Tensor host = type == at::kBool                 ? numbers.gt(0)
                            : at::isIntegralType(type, false) ? numbers.mul(10).round().to(type)
                                                              : numbers.to(type);
    at::Tensor there = room(sizes, type);
    there.copy_(device.is_cpu() ? host : host.pin_memory(), /*non_blocking=*/true);
    return there;
  }
  /// Of no values yet.
  at::Tensor room(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) const {
    const auto options = at::TensorOptions(device).dtype(type);
    if (!strided) return at::empty(sizes, options);
    auto wider = sizes.vec();
    wider.push_back(2);
    return at::empty(wider, options).select(-1, 1);
  }
  Tensors rooms(size_t count, at::IntArrayRef sizes, at::ScalarType type = at::kFloat) const {
    Tensors all;
    for (size_t i = 0; i < count; ++i) all.push_back(room(sizes, type));
    return all;
  }
};

inline void wait_for(const TuttiBackend::WorkPointer& work) { work->wait(kNoTimeout); }

class BackendOnDevices : public tutti::test::FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    if (!IsSkipped()) tutti::test::fake_cuda::set_devices(3);
  }

  struct Group {
    int size = 2;
    bool on_cuda = true;
    bool one_device = false;  ///< all ranks share cuda:0
    bool strided = false;
    Millis timeout{20'000};
    std::string engine = "shm staged";  ///< or "hier", "tcp", "solo"
  };

  /// What each rank threw, "" for nothing. Each has a queue of its own on its device.
  static std::vector<std::string> run(const Group& group, const std::function<void(Rank&)>& body) {
    const auto engines = group.engine == "hier"
                             ? tutti::test::make_hier_threads({group.size - 1, 1}, 4096)
                             : tutti::test::make_engines(group.engine, group.size);
    const auto thrown = tutti::test::run_members(
        engines, [&](tutti::Group members) {
          const int rank = members.rank();
          const at::Device device =
              group.on_cuda ? at::Device(at::kCUDA, group.one_device ? 0 : rank) : at::kCPU;
          const auto backend = c10::make_intrusive<TuttiBackend>(
              std::move(members),
              BackendFacts{
                  .rank = rank, .size = group.size, .timeout = group.timeout, .name = "test"});
          const OnQueue on(DeviceQueue(device, "a test"));
          Rank self{*backend, rank, group.size, device, group.strided};
          body(self);
        });
    std::vector<std::string> words;
    for (const auto& one : thrown) words.push_back(tutti::test::words_of(one));
    return words;
  }

  static void run_all_well(const Group& group, const std::function<void(Rank&)>& body) {
    for (const auto& words : run(group, body)) EXPECT_EQ(words, "");
  }
};

}  // namespace tutti::python::test
