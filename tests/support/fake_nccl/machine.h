/// What the fake runtime and the fake NCCL share. Everything is guarded by
/// fake_cuda::lock_of_all(), which tasks hold while they run.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/queues.h"
#include "tests/support/fake_nccl/fake_nccl.h"

namespace tutti::test::fake_nccl {

struct World;  ///< the members of one communicator: nccl.cpp

struct Machine {
  FakeRules rules;
  std::vector<std::string> calls;
  std::vector<std::string> complaints;
  std::set<void*> live;  ///< streams, events, memory
  /// What was allocated stays until reset_fakes(): as cudaFree() does, which waits for the device.
  std::vector<std::shared_ptr<void>> memory;
  std::vector<std::shared_ptr<FakeComm>> comms;
  std::map<std::string, std::shared_ptr<World>> worlds;
  int ids = 0;
  int streams = 0;
};

Machine& machine();
void complain(bool holds, const std::string& rule);

/// Whether kernels that this stream will hold are still being launched.
bool is_launching_on(cudaStream_t stream);

fake_cuda::Queue& queue_of(cudaStream_t stream);

}  // namespace tutti::test::fake_nccl
