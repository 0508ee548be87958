#include "tutti/sync/on_devices/detail/exact_sums.h"

#include <ATen/ops/empty.h>

#include "tutti/sync/tensors.h"

namespace tutti::detail {

ExactSums::ExactSums(const World& world, int replica, std::vector<int64_t> cuts,
                     std::vector<Run> own)
    : world_(world),
      group_(world.device_groups.at(static_cast<size_t>(replica))),
      stream_(world.queues[static_cast<size_t>(replica)].handle()),
      cuts_(std::move(cuts)),
      own_(std::move(own)) {
  const auto own_piece = static_cast<size_t>(world_.process());
  first_ = cuts_[own_piece];
  for (size_t process = 0; process + 1 < cuts_.size(); ++process) {
    send_.push_back(world_.local * bytes_of(process));
    receive_.push_back(world_.local * bytes_of(own_piece));
    parts_.push_back(bytes_of(process));
  }
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(
      world_.queues[static_cast<size_t>(replica)].device());
  outgoing_ = at::empty({world_.local * (cuts_.back() - cuts_.front())}, bytes);
  incoming_ = at::empty({world_.size, bytes_of(own_piece)}, bytes);
}

void ExactSums::add_up(std::span<const at::Tensor> gradients, const at::Tensor& sums) {
  collect(gradients);
  group_
      .all_to_all(span_of(outgoing_), span_of(incoming_.view({-1})), send_, receive_,
                  world_.time_limit)
      .wait_on(stream_);
  for (const Run& run : own_) add_own(run);
  group_.all_gather(span_of(incoming_[0]), span_of(sums), parts_, world_.time_limit)
      .wait_on(stream_);
}

void ExactSums::collect(std::span<const at::Tensor> gradients) {
  int64_t at = 0;
  for (size_t process = 0; process + 1 < cuts_.size(); ++process)
    for (const at::Tensor& gradient : gradients) {
      outgoing_.narrow(0, at, bytes_of(process))
          .copy_(gradient.narrow(0, cuts_[process], bytes_of(process)), /*non_blocking=*/true);
      at += bytes_of(process);
    }
}

void ExactSums::add_own(const Run& run) {
  for (const auto& [into, from] : world_.shape.steps())
    elements_of(incoming_[into], run, first_).add_(elements_of(incoming_[from], run, first_));
}

}  // namespace tutti::detail
