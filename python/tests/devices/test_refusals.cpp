// What ends badly: devices that hang, ranks that are gone, calls that are refused. Each says who and
// what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "python/tests/devices/ranks.h"
#include "tests/support/message_of.h"

namespace tutti::python::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using tutti::test::message_of;
namespace fake_cuda = tutti::test::fake_cuda;

class Refusals : public BackendOnDevices {};

std::string all_reduce_fails(Rank& self, at::Tensor tensor) {
  Tensors tensors{std::move(tensor)};
  return message_of<c10::Error>([&] { wait_for(self.backend.allreduce(tensors, {})); });
}

TEST_F(Refusals, ADeviceThatHangsIsNamedOnEveryRank) {
  for (const char* const engine : {"shm staged", "tcp", "hier"}) {
    SCOPED_TRACE(engine);
    std::vector<std::string> words(3);
    run_all_well({.size = 3, .timeout = Millis(1'000), .engine = engine}, [&](Rank& self) {
      const at::Tensor tensor = self.data({10});
      fake_cuda::run_all();
      if (self.rank == 1) fake_cuda::stick(1);
      words[static_cast<size_t>(self.rank)] = all_reduce_fails(self, tensor.add_(1));
      EXPECT_THAT(all_reduce_fails(self, tensor), HasSubstr("rank 1 (cuda:1) hangs"));
    });
    EXPECT_THAT(words, Each(AllOf(HasSubstr("rank 1 (cuda:1) hangs"),
                                  HasSubstr("waited 500 ms for the tensors of tutti:all_reduce, "
                                            "call 1 of group \"test\""))));
    fake_cuda::unstick(1);
  }
}

TEST_F(Refusals, AMessageOfADeviceThatHangsEndsToo) {
  std::vector<std::string> words(2);
  run_all_well({.timeout = Millis(1'000)}, [&](Rank& self) {
    Tensors tensors{self.data({10})};
    fake_cuda::run_all();
    if (self.rank == 1) fake_cuda::stick(1);
    tensors[0].add_(1);
    words[static_cast<size_t>(self.rank)] = message_of<c10::Error>([&] {
      wait_for(self.rank == 1 ? self.backend.send(tensors, 0, 0) : self.backend.recv(tensors, 1, 0));
    });
  });
  EXPECT_THAT(words, Each(HasSubstr("rank 1 (cuda:1) hangs")));
  fake_cuda::unstick(1);
}

// As an index out of range does on a device: CUDA tells of it at the next question.
TEST_F(Refusals, AFaultOnADeviceIsToldToEveryRank) {
  std::vector<std::string> words(2);
  run_all_well({}, [&](Rank& self) {
    const auto options = at::TensorOptions(self.device);
    at::Tensor tensor = at::ones({3, 4}, options);
    if (self.rank == 1)
      tensor = at::nll_loss(tensor, at::full({3}, 9, options.dtype(at::kLong)));
    else
      tensor = tensor.sum();
    Tensors tensors{tensor};
    try {
      wait_for(self.backend.allreduce(tensors, {}));
    } catch (const std::exception& error) {
      words[static_cast<size_t>(self.rank)] = error.what();
    }
  });
  EXPECT_THAT(words, Each(HasSubstr("nll_loss")));
}

TEST_F(Refusals, ARankThatIsGoneIsNamed) {
  run_all_well({.size = 3, .timeout = Millis(500)}, [&](Rank& self) {
    if (self.rank == 2) return;
    EXPECT_THAT(all_reduce_fails(self, self.data({10})), HasSubstr("rank 2"));
  });
}

// All devices hang, and the last rank gives up.
TEST_F(Refusals, AnAbortEndsWhatWaitsForDevices) {
  for (const auto& [engine, size] :
       {std::pair{"shm staged", 2}, {"tcp", 2}, {"hier", 3}, {"solo", 1}}) {
    SCOPED_TRACE(engine);
    run_all_well({.size = size, .engine = engine}, [&](Rank& self) {
      Tensors tensors{self.data({10})};
      fake_cuda::run_all();
      fake_cuda::stick(self.device.index());
      tensors[0].add_(1);
      const auto work = self.backend.allreduce(tensors, {});
      if (self.rank == self.size - 1) self.backend.abort();
      EXPECT_THAT(message_of<c10::Error>([&] { wait_for(work); }), HasSubstr("aborted"));
      fake_cuda::unstick(self.device.index());
    });
  }
}

TEST_F(Refusals, TensorsOfSeveralDevicesAreAndTheGroupGoesOn) {
  tutti::test::fake_cuda::set_order(fake_cuda::Order::eager);
  run_all_well({}, [](Rank& self) {
    at::Tensor here = self.data({4}), on_host = at::zeros({8}),
               there = at::zeros({8}, at::Device(at::kCUDA, 2));
    const std::string where = self.device.str();
    EXPECT_THAT(
        message_of<c10::Error>([&] { self.backend._allgather_base(on_host, here, {}); }),
        HasSubstr("tutti:all_gather: one tensor on " + where + " and another on cpu"));
    EXPECT_THAT(message_of<c10::Error>([&] { self.backend._allgather_base(there, here, {}); }),
                HasSubstr("tutti:all_gather: one tensor on " + where + " and another on cuda:2"));
    Tensors meta{at::empty({4}, at::kMeta)};
    EXPECT_THAT(message_of<c10::Error>([&] { self.backend.allreduce(meta, {}); }),
                HasSubstr("tensor on meta; backend tutti takes tensors on the CPU and on CUDA"));
    at::Tensor output = self.room({8});
    wait_for(self.backend._allgather_base(output, here, {}));
    EXPECT_TRUE(output.narrow(0, 4 * self.rank, 4).cpu().equal(here.cpu()));
  });
}

}  // namespace
}  // namespace tutti::python::test
