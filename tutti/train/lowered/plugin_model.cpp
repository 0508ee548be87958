#include "tutti/train/lowered/detail/plugin_model.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include "tutti/base/error.h"
#include "tutti/strategy/membership/membership.h"
#include "tutti/sync/tensors.h"

namespace tutti::detail {

struct PluginModel::Made {
  Training training;
  CompiledUpdater* updater = nullptr;
  uint64_t seed = 0;
  bool leaves_out_bad = true;
  std::optional<CompiledTrainer> trainer{};
};

PluginModel::PluginModel(nn::Graph graph, ReplicatedModules modules)
    : graph_(std::move(graph)), modules_(std::move(modules)) {
  before_.emplace(graph_, client(), options_of(nullptr));
}

PluginModel::~PluginModel() { forget_compiled(); }

void PluginModel::forget_compiled() noexcept {
  if (made_) made_->updater->made_by(nullptr);
  made_.reset();
}

const pjrt::Client& PluginModel::client() const { return *modules_.strategy().world().plugin; }

CompiledOptions PluginModel::options_of(const Made* made) const {
  constexpr int kWithSteps = 4;  // that are on their way before
  const Strategy strategy = modules_.strategy();
  CompiledOptions options{.replicas = strategy.world().size,
                          .limit = kWithSteps * strategy.world().time_limit};
  if (!strategy.membership().alone())
    options.exchange = [strategy](std::string_view own) {
      std::vector<std::string> all;
      for (auto& [worker, words] : strategy.membership().words_of_all(own))
        all.push_back(std::move(words));
      return all;
    };
  if (made == nullptr) return options;
  options.product = made->training.product;
  options.seed = made->seed;
  options.outputs = made->training.outputs;
  options.leaves_out_bad = made->leaves_out_bad;
  return options;
}

CompiledModel& PluginModel::model() {
  if (made_) return made_->trainer->model();
  if (!before_) before_.emplace(graph_, client(), options_of(nullptr));
  return *before_;
}

std::unique_ptr<PluginModel::Made> PluginModel::prepared(const Training& training) const {
  require_frozen_alike();
  auto made = std::make_unique<Made>(Made{.training = training});
  make_trainer(*made);
  return made;
}

void PluginModel::compile(std::unique_ptr<Made> made, Updater& updater) {
  auto& compiled = dynamic_cast<CompiledUpdater&>(updater);
  forget_compiled();
  before_.reset();
  made_ = std::move(made);
  made_->updater = &compiled;
  loaded_ = kNever;
  compiled.made_by(this);
}

void PluginModel::check(const CompiledPart& part) const { made_->trainer->check(part); }
CompiledPart PluginModel::part_without_rows() const { return made_->trainer->part_without_rows(); }

void PluginModel::make_trainer(Made& made) const {
  made.trainer.reset();  // its memory first
  made.trainer.emplace(graph_, made.training.loss, made.training.rule, client(), options_of(&made));
}

// A program trains what the graph says; what a module says later nobody has compiled.
void PluginModel::require_frozen_alike() const {
  std::map<std::string, bool> trained;
  for (const nn::Node& node : graph_.nodes())
    for (const nn::Parameter& parameter : node.parameters)
      if (parameter.trainable) trained.emplace(nn::full_name(node, parameter), !parameter.frozen);
  for (const auto& [name, parameter] : unique_parameters(*modules_.module(0)))
    if (const auto found = trained.find(name);
        found != trained.end() && found->second != parameter.requires_grad())
      throw UsageError(fmt::format(
          "strategy tpu: parameter \"{}\" has requires_grad {}, and the graph has it {}: what is "
          "frozen is said by the graph, nn::with_frozen(graph, {{\"{}\"}})",
          name, parameter.requires_grad(), found->second ? "trained" : "frozen", name));
}

void PluginModel::begin(uint64_t seed, bool leaves_out_bad) {
  require_frozen_alike();
  made_->seed = seed;
  made_->trainer->set_seed(seed);
  if (made_->leaves_out_bad == leaves_out_bad) return;
  made_->updater->complete();
  made_->leaves_out_bad = leaves_out_bad;
  make_trainer(*made_);
  loaded_ = kNever;
}

// Of several processes the mean over the replicas here: to ask the others is nothing that one alone
// may do, and the mean of all is that of such means.
NamedTensors PluginModel::buffers_here() const {
  if (modules_.strategy().membership().alone()) return modules_.merged_buffers();
  NamedTensors means;
  for (const auto& [name, buffer] : unique_buffers(*modules_.module(0)))
    means.emplace_back(name, buffer.detach().clone());
  for (size_t i = 0; i < means.size(); ++i) {
    at::Tensor& mean = means[i].second;
    if (modules_.size() == 1 || !mean.is_floating_point()) continue;
    at::Tensor sum = at::zeros_like(mean, at::kDouble);
    for (int local = 0; local < modules_.size(); ++local)
      sum += unique_buffers(*modules_.module(local))[i].second.detach();
    mean.copy_(sum / modules_.size());
  }
  return means;
}

std::map<std::string, Array> PluginModel::values_here() const {
  std::map<std::string, Array> values;
  for (const auto& [name, parameter] : unique_parameters(*modules_.module(0)))
    values.emplace(name, array_of(parameter.detach()));
  for (const auto& [name, buffer] : buffers_here()) values.emplace(name, array_of(buffer.detach()));
  if (!made_) return values;
  for (const auto& [name, state] : made_->updater->state().tensors) {
    const auto slash = name.find('/');
    if (slash != std::string::npos)
      values.emplace(fmt::format("{}.{}", name.substr(slash + 1), name.substr(0, slash)),
                     array_of(state));
  }
  return values;
}

void PluginModel::load_if_written() {
  const int64_t writes = made_ ? made_->updater->writes() : 0;
  if (made_ && loaded_ == writes) return;
  model().load(values_here());
  if (made_) made_->trainer->set_updates(made_->updater->version(), made_->updater->scalars());
  loaded_ = writes;
}

void PluginModel::uncount_steps(int64_t steps) { made_->updater->stepped(-steps); }

double PluginModel::count_step() {
  made_->updater->stepped();
  return made_->updater->learning_rate();
}

std::vector<CompiledResult> PluginModel::steps(const std::vector<std::vector<CompiledPart>>& parts,
                                               const std::vector<double>& learning_rates) {
  return made_->trainer->steps(parts, learning_rates);
}

std::vector<std::vector<Array>> PluginModel::predict(
    const std::vector<std::vector<Array>>& inputs) {
  return model().predict(inputs);
}

std::vector<Array> PluginModel::predict(const std::vector<Array>& inputs) {
  return model().predict(inputs);
}

CompiledSteps::Newest PluginModel::newest() {
  const CompiledTrainer& trainer = *made_->trainer;
  const CompiledTrainer::Made made = trainer.made();
  Newest newest{
      .values = {}, .scalars = made.scalars, .version = made.updates, .left_out = made.left_out};
  for (const auto& [name, array] : trainer.values()) newest.values.emplace(name, tensor_of(array));
  return newest;
}

void PluginModel::take_buffers(const Newest& newest) {
  const at::NoGradGuard no_grad;
  for (int local = 0; local < modules_.size(); ++local)
    for (const auto& [name, buffer] : unique_buffers(*modules_.module(local)))
      buffer.copy_(newest.values.at(name));
}

int64_t PluginModel::take_back_left_out() { return made_->trainer->take_back_left_out(); }

void throw_no_graph() {
  throw UsageError(
      "strategy tpu compiles whole steps of an nn::Graph, and the factory made a module of its "
      "own, "
      "which cannot be compiled: describe the network as a graph (nn::input(), nn::conv2d(), ...: "
      "docs/guide/model.md), or train a program in StableHLO by ProgramTrainer "
      "(docs/guide/tpu.md)");
}

}  // namespace tutti::detail
