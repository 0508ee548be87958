// Replicas on devices whose parameters are updated on the CPU, by any other updater.
#include <fmt/format.h>
#include <torch/types.h>

#include "tutti/queues/host_copies.h"
#include "tutti/queues/upload.h"
#include "tutti/sync/detail/gradients.h"
#include "tutti/sync/updater.h"

namespace tutti {
namespace detail {
namespace {

// The values of a module's parameters, as parameters on the CPU; those that are there, themselves.
NamedTensors on_cpu(const NamedTensors& parameters, Millis limit) {
  std::vector<at::Tensor> values;
  for (const auto& [name, parameter] : parameters) values.push_back(parameter);
  values = on_host(values, Deadline(patience_with_device(limit)), "parameters for the CPU");
  NamedTensors copies;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& [name, parameter] = parameters[i];
    copies.emplace_back(name, parameter.is_cpu() ? parameter
                                                 : values[i].contiguous().requires_grad_(
                                                       parameter.requires_grad()));
  }
  return copies;
}

std::vector<NamedTensors> on_cpu(const std::vector<NamedTensors>& replicas, Millis limit) {
  std::vector<NamedTensors> all;
  for (const NamedTensors& one : replicas) all.push_back(on_cpu(one, limit));
  return all;
}

class StagedUpdater final : public Updater, public LateParameters, public ParameterCopies {
 public:
  StagedUpdater(const World& world, std::vector<NamedTensors> replicas, const UpdaterFactory& make)
      : world_(world), inner_(make(on_cpu(replicas, world.time_limit))) {
    bind(replicas);
    const UpdaterParts& inner = inner_->parts();
    parts_ = {.late = inner.late != nullptr ? this : nullptr,
              .copies = inner.client == nullptr ? this : nullptr,
              .client = inner.client};
  }

  detail::GradientListener* begin(int replica, Overlap overlap) override {
    const Lane& lane = lanes_.at(static_cast<size_t>(replica));
    if (lane.queue.on_device()) require_cleared(layout(), lane.parameters);
    return inner_->begin(replica, lane.queue.on_device() ? Overlap::off : overlap);
  }

  Verdict step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
               const Deadline& deadline) override {
    Lane& lane = lanes_.at(static_cast<size_t>(replica));
    Vote own = vote;
    if (lane.queue.on_device()) {
      // The host waits for this step, so that it need not be told of later ones.
      if (fetch(lane, gradients, std::exchange(own.bad, {}))) own.part = kLeavesOut;
      gradients = lane.gradients;
    }
    const Verdict verdict = inner_->step(replica, gradients, own, deadline);
    const auto turn = world_.on_thread_of(replica);
    if (replica == turn.back())
      for (const int each : turn) take_values(each);
    return verdict;
  }

  void ready(int replica, const Deadline& deadline) override {
    inner_->ready(replica, deadline);
    take_values(replica);
  }

  void complete() override {
    if (auto* const late = inner_->parts().late) late->complete();
  }
  void rethrow_failure() const override { inner_->parts().late->rethrow_failure(); }
  void refresh() override {
    inner_->parts().late->refresh();
    take_all_values();
  }

  void take_over() override {
    const at::NoGradGuard no_grad;
    for (size_t replica = 0; replica < lanes_.size(); ++replica) {
      const auto values =
          on_host(lanes_[replica].parameters, Deadline(patience_with_device(world_.time_limit)),
                  "parameters for the CPU");
      const auto& own = inner_->parameters(static_cast<int>(replica));
      for (size_t i = 0; i < own.size(); ++i) own[i].detach().copy_(values[i]);
    }
  }

  UpdaterView view(int replica) const override {
    const UpdaterView inner = inner_->view(replica);
    return {lanes_.at(static_cast<size_t>(replica)).parameters, inner.layout, inner.version,
            inner.learning_rate};
  }
  void set_learning_rate(double rate) override { inner_->set_learning_rate(rate); }
  void require_whole() const override { inner_->require_whole(); }
  int64_t wire_bytes_per_step() const override { return inner_->wire_bytes_per_step(); }

  UpdaterState state() const override { return inner_->state(); }
  void restore(const UpdaterState& state, const NamedTensors& parameters) override {
    inner_->restore(state, on_cpu(parameters, world_.time_limit));
    take_all_values();
  }

  void rebind(const World& world, std::vector<NamedTensors> replicas) override {
    inner_->rebind(world, on_cpu(replicas, world.time_limit));
    world_ = world;
    bind(replicas);
  }

 private:
  struct Lane {
    DeviceQueue queue;
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;  // in pinned memory; undefined where there was none
    DeviceMark fetched;
  };

  void bind(const std::vector<NamedTensors>& replicas) {
    lanes_ = std::vector<Lane>(replicas.size());
    for (size_t replica = 0; replica < replicas.size(); ++replica) {
      lanes_[replica].queue = world_.queues[replica];
      for (const auto& [name, parameter] : replicas[replica])
        lanes_[replica].parameters.push_back(parameter);
    }
    take_all_values();
  }

  void take_all_values() {
    for (int replica = 0; replica < static_cast<int>(lanes_.size()); ++replica)
      take_values(replica);
  }

  // Into pinned memory; true where `bad`, which may be undefined, is not 0.
  bool fetch(Lane& lane, std::span<const at::Tensor> gradients, const at::Tensor& bad) {
    const at::NoGradGuard no_grad;
    const auto fetched = [](const at::Tensor& there) {
      const at::Tensor copy =
          at::empty(there.sizes(), there.options().device(at::kCPU).pinned_memory(true));
      return copy.copy_(there, /*non_blocking=*/true);
    };
    lane.gradients.assign(lane.parameters.size(), {});
    for (size_t i = 0; i < std::min(gradients.size(), lane.gradients.size()); ++i) {
      if (!gradients[i].defined()) continue;
      check_gradient(layout().slots[i], gradients[i], lane.queue.device());
      lane.gradients[i] = fetched(gradients[i]);
    }
    const at::Tensor told = bad.defined() ? fetched(bad) : at::Tensor();
    lane.queue.mark(lane.fetched);
    lane.queue.wait(lane.fetched, Deadline(patience_with_device(world_.time_limit)),
                    "the backward pass whose gradients are added on the CPU");
    return told.defined() && told.item<float>() != 0;
  }

  // By way of pinned memory, so that the host waits for no device, and may write the values next.
  void take_values(int replica) {
    const at::NoGradGuard no_grad;
    Lane& lane = lanes_[static_cast<size_t>(replica)];
    if (!lane.queue.on_device()) return;
    complete();
    const auto& values = inner_->parameters(replica);
    for (size_t i = 0; i < values.size(); ++i) {
      copy_queued(lane.parameters[i], values[i]);
      values[i].mutable_grad().reset();
    }
    bump_versions(lane.parameters);
  }

  World world_;
  std::shared_ptr<Updater> inner_;
  std::vector<Lane> lanes_;
};

}  // namespace
}  // namespace detail

std::shared_ptr<Updater> make_staged_updater(const World& world, std::vector<NamedTensors> replicas,
                                             const UpdaterFactory& make) {
  return std::make_shared<detail::StagedUpdater>(world, std::move(replicas), make);
}

}  // namespace tutti
