// Replicas on devices whose parameters are updated on the CPU, by any other updater.
#include <fmt/format.h>
#include <torch/types.h>

#include <cmath>

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

class StagedUpdater final : public Updater {
 public:
  StagedUpdater(const World& world, std::vector<NamedTensors> replicas, const UpdaterFactory& make)
      : world_(world), inner_(make(on_cpu(replicas, world.time_limit))) {
    bind(replicas);
  }

  void begin(int replica, Overlap overlap) override {
    const Lane& lane = lanes_.at(static_cast<size_t>(replica));
    if (lane.queue.on_device()) require_cleared(layout(), lane.parameters);
    inner_->begin(replica, lane.queue.on_device() ? Overlap::off : overlap);
  }

  GradientListener* listener(int replica) override {
    const bool elsewhere = lanes_.at(static_cast<size_t>(replica)).queue.on_device();
    return elsewhere ? nullptr : inner_->listener(replica);
  }

  void forget_step() override { inner_->forget_step(); }

  int64_t push(int replica, std::span<const at::Tensor> gradients, double weight) override {
    Lane& lane = lanes_.at(static_cast<size_t>(replica));
    if (!lane.queue.on_device()) return inner_->push(replica, gradients, weight);
    if (fetch(lane, gradients)) weight = std::nan("");
    return inner_->push(replica, lane.gradients, weight);
  }

  void acquire(int replica, int64_t at_least, const Deadline& deadline) override {
    inner_->acquire(replica, at_least, deadline);
    if (!world_.in_turn()) return take_values(replica);
    for (int all = 0; all < world_.local && inner_->version() >= at_least; ++all) take_values(all);
  }

  void prepare(int replica, const Deadline& deadline) override {
    inner_->prepare(replica, deadline);
    take_values(replica);
  }

  void complete() override { inner_->complete(); }
  void rethrow_failure() const override { inner_->rethrow_failure(); }
  void refresh() override {
    inner_->refresh();
    take_all_values();
  }

  // The host has waited for this step, so that it need not be told of later ones.
  void leave_out_if(int replica, const at::Tensor& bad) override {
    Lane& lane = lanes_.at(static_cast<size_t>(replica));
    const at::Tensor flag = bad.detach().reshape({}).to(at::kFloat);
    lane.bad = lane.bad.defined() ? at::maximum(lane.bad, flag) : flag;
  }

  int64_t version() const override { return inner_->version(); }
  void set_learning_rate(double rate) override { inner_->set_learning_rate(rate); }
  double learning_rate() const override { return inner_->learning_rate(); }
  void require_whole() const override { inner_->require_whole(); }
  int64_t wire_bytes_per_step() const override { return inner_->wire_bytes_per_step(); }
  ps::Client* client() override { return inner_->client(); }
  const Layout& layout() const override { return inner_->layout(); }
  const std::vector<at::Tensor>& parameters(int replica) const override {
    return lanes_.at(static_cast<size_t>(replica)).parameters;
  }

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
    at::Tensor bad;                     // on the device; undefined: nobody has asked
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

  // Into pinned memory; true where somebody has asked to leave the step out.
  bool fetch(Lane& lane, std::span<const at::Tensor> gradients) {
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
    const at::Tensor bad = lane.bad.defined() ? fetched(lane.bad) : at::Tensor();
    lane.bad.reset();
    lane.queue.mark(lane.fetched);
    lane.queue.wait(lane.fetched, Deadline(patience_with_device(world_.time_limit)),
                    "the backward pass whose gradients are added on the CPU");
    return bad.defined() && bad.item<float>() != 0;
  }

  // By way of pinned memory, so that the host waits for no device, and may write the values next.
  void take_values(int replica) {
    const at::NoGradGuard no_grad;
    Lane& lane = lanes_[static_cast<size_t>(replica)];
    if (!lane.queue.on_device()) return;
    inner_->complete();
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
