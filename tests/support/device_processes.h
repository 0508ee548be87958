/// Replicas on devices in several processes, which are threads here, each with a World of its own:
/// hosts meet in shared memory or over engine hier, devices over the fake NCCL.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tutti/comm/shm/shm.h"
#include "tutti/strategy/membership/detail/worlds.h"
#include "tutti/sync/updater.h"

#include "tests/support/device_job.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/hier.h"
#include "tests/support/meeting.h"

namespace tutti::test {

struct ProcessesJob {
  int processes = 2;
  int local = 1;  ///< replicas of each
  DeviceSums sums{.bucket_bytes = 8 << 10, .first_bucket_bytes = 2 << 10};
  optim::Recipe recipe = optim::adam({.learning_rate = 0.01});
  int steps = 6;
  bool unused = false;  ///< as DeviceJob
  Millis limit{20'000};
  int hosts = 1;  ///< more: consecutive processes share one, and engine hier adds
  int replicas() const { return processes * local; }
};

struct Process {
  World world;
  std::vector<torch::nn::Sequential> nets;
  std::vector<NamedTensors> parameters;
  std::shared_ptr<Updater> updater;
};

/// The hosts' group: shared memory, or engine hier over several.
inline std::vector<std::shared_ptr<Engine>> hosts_of(const ProcessesJob& job) {
  if (job.hosts == 1) return make_shm_threads(job.replicas(), {});
  const std::vector<int> per_host(static_cast<size_t>(job.hosts), job.replicas() / job.hosts);
  return make_hier_threads(per_host, 4 << 10);
}

/// Replica r is on cuda:r, or where `queues` are. Collective: each process calls it in a thread of
/// its own.
inline World world_of(const ProcessesJob& job, int process,
                      const std::vector<std::shared_ptr<Engine>>& hosts,
                      std::vector<DeviceQueue> queues = {}) {
  World world;
  world.size = job.replicas();
  world.local = job.local;
  world.first_rank = process * job.local;
  world.chief = process == 0;
  world.time_limit = job.limit;
  for (int rank = world.first_rank; rank < world.first_rank + job.local; ++rank) {
    world.groups.emplace_back(hosts[static_cast<size_t>(rank)]);
    if (queues.empty())
      world.queues.emplace_back(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(rank)),
                                fmt::format("replica {0} (cuda:{0})", rank));
  }
  if (!queues.empty()) world.queues = std::move(queues);
  world.shape = world.groups[0].reduction_shape();
  if (world.processes() == 1) return world;
  detail::make_device_groups(
      world, {.engine = job.hosts > 1 ? "hier" : "nccl",
              .order = job.sums.order,
              .machine = fmt::format("host {}", process * job.hosts / job.processes)});
  return world;
}

/// All processes of a job, ready to train.
inline std::vector<std::unique_ptr<Process>> start(const ProcessesJob& job) {
  const auto hosts = hosts_of(job);
  std::vector<std::unique_ptr<Process>> all;
  for (int process = 0; process < job.processes; ++process) {
    auto& made = all.emplace_back(std::make_unique<Process>());
    for (int local = 0; local < job.local; ++local) {
      torch::manual_seed(11);
      auto net = small_net();
      net->to(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(process * job.local + local)));
      made->parameters.push_back(unique_parameters(*net));
      made->nets.push_back(net);
    }
  }
  run_threads(job.processes, [&](int process) {
    Process& own = *all[static_cast<size_t>(process)];
    own.world = world_of(job, process, hosts);
    own.updater = make_device_updater(own.world, job.recipe, own.parameters, job.sums);
  });
  fake_cuda::run_all();  // what was made on the default streams, before the replicas' queues
  return all;
}

/// Calls `body(process, local)` for every replica at once, each on its queue.
template <class Body>
void run_replicas(std::vector<std::unique_ptr<Process>>& all, Body body) {
  const int local = all[0]->world.local;
  run_threads(static_cast<int>(all.size()) * local, [&](int rank) {
    Process& own = *all[static_cast<size_t>(rank / local)];
    const OnQueue on(own.world.queues[static_cast<size_t>(rank % local)]);
    body(own, rank % local);
  });
}

/// The step of device_step(), with an updater alone.
inline void process_step(Process& process, int local, const at::Tensor& x, bool short_cut = false,
                         const Vote& vote = {}) {
  const World& world = process.world;
  const at::Device device = world.queues[static_cast<size_t>(local)].device();
  const int64_t rows = 6 / world.size, first = rows * (world.first_rank + local);
  const auto there = [&](const at::Tensor& t) {  // no host waits
    return t.contiguous().pin_memory().to(device, /*non_blocking=*/true);
  };
  const auto part = there(x.narrow(0, first, rows).clone());
  const auto y = there(torch::arange(first, first + rows).remainder(4));
  auto& net = process.nets[static_cast<size_t>(local)];
  const auto each =
      torch::cross_entropy_loss(forward(net, part, short_cut), y, {}, at::Reduction::None);
  Updater& updater = *process.updater;
  updater.begin(local, Overlap::on);
  average_loss(each, 6).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : updater.parameters(local))
    gradients.push_back(parameter.grad());
  updater.step(local, gradients, vote, Deadline(world.time_limit));
  for (const at::Tensor& parameter : updater.parameters(local)) parameter.mutable_grad().reset();
}

inline at::Tensor weights_here(const Process& process, int local) {
  std::vector<at::Tensor> flat;
  for (const auto& [name, parameter] : process.parameters[static_cast<size_t>(local)])
    flat.push_back(parameter.detach().cpu().reshape({-1}));
  return torch::cat(flat);
}

/// The weights of every replica, by rank, after a training.
inline std::vector<at::Tensor> weights_of(const ProcessesJob& job) {
  auto all = start(job);
  std::vector<at::Tensor> weights(static_cast<size_t>(job.replicas()));
  const auto x = device_data(job.steps);
  run_replicas(all, [&](Process& process, int local) {
    const int rank = process.world.first_rank + local;
    for (int step = 0; step < job.steps; ++step)
      process_step(process, local, x[step], job.unused && step % 2 == 1 && rank == 1);
    weights[static_cast<size_t>(rank)] = weights_here(process, local);
  });
  return weights;
}

}  // namespace tutti::test
