#include "tutti/train/lowered/compiled_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>

#include "tutti/base/clock.h"
#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/random.h"
#include "tutti/nn/lower_graph.h"
#include "tutti/nn/lower_rule.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/lowered/detail/rows.h"
#include "tutti/train/lowered/detail/share_of_step.h"

namespace tutti {

using detail::array_with;
using detail::filled_up;
using detail::require_fits;
using detail::ShareOfStep;

namespace {

constexpr size_t kMostTakenBack = 4096;
constexpr const char* kLeftOut = ".left_out";

/// A step that the trainer has not taken yet.
struct StepToCome {
  const std::vector<CompiledPart>* parts = nullptr;
  size_t largest = 0;  ///< the part with the most rows
  ShareOfStep all{};
  std::vector<int64_t> first_rows{};   ///< of the parts here, in the whole batch
  const CompiledPart* like = nullptr;  ///< has a row, by which the others are filled up
  optim::StepScalars scalars{};
  double scale = 0;    ///< of what rows lose
  int64_t update = 0;  ///< updates before it
};

template <class T>
Array array_of_list(std::vector<int64_t> shape, const std::vector<T>& values) {
  return array_with(std::move(shape), std::span<const T>(values));
}

/// Row `number`, without that dimension.
Array number_of(const Array& stacked, int64_t number) {
  const Array row = stacked.rows(number, number + 1);
  return Array::view(row.data(), row.dtype(), {row.shape().begin() + 1, row.shape().end()},
                     row.owner());
}

/// [count, ...] of so many of one shape; itself of one.
Array stacked(std::vector<Array> arrays) {
  if (arrays.size() == 1) return std::move(arrays[0]);
  std::vector<int64_t> shape = arrays[0].shape();
  shape.insert(shape.begin(), std::ssize(arrays));
  Array all = Array::zeros(arrays[0].dtype(), std::move(shape));
  auto* to = static_cast<std::byte*>(all.data());
  for (const Array& one : arrays) {
    std::memcpy(to, one.data(), static_cast<size_t>(one.num_bytes()));
    to += one.num_bytes();
  }
  return all;
}

}  // namespace

struct CompiledResult::Run {
  pjrt::Results results;
  int loss = 0, output = -1;  ///< their places
  int64_t steps = 1;
  std::map<std::pair<size_t, int>, Array> read{};  ///< by replica and place

  const Array& on_host(size_t replica, int place, const Deadline& deadline) {
    const auto found = read.find({replica, place});
    if (found != read.end()) return found->second;
    results.wait(deadline);
    Array array = results.outputs[replica][static_cast<size_t>(place)].to_host(deadline);
    return read.emplace(std::pair(replica, place), std::move(array)).first->second;
  }
};

double CompiledResult::sum(const Deadline& deadline) const {
  return run_->on_host(0, run_->loss, deadline).as<float>()[static_cast<size_t>(number_)];
}

double CompiledResult::loss(const Deadline& deadline) const { return sum(deadline) * scale_; }

std::vector<Array> CompiledResult::outputs(const Deadline& deadline) const {
  if (run_->output < 0)
    throw UsageError("a compiled step gives outputs where CompiledOptions::outputs is set");
  std::vector<Array> all;
  for (size_t replica = 0; replica < rows_.size(); ++replica) {
    const Array& read = run_->on_host(replica, run_->output, deadline);
    const Array own = run_->steps == 1 ? read : number_of(read, number_);
    all.push_back(own.rows(0, rows_[replica]));
  }
  return all;
}

struct CompiledTrainer::State {
  struct Compiled {
    LoweredProgram lowered;
    pjrt::Program program;
  };

  CompiledModel model;
  Loss loss;
  optim::Rule rule;
  std::vector<SlotOf> inputs;                                  ///< of a step of one row
  std::vector<SlotOf> targets;                                 ///< the same
  std::map<std::pair<int64_t, int64_t>, Compiled> programs{};  ///< by steps, rows of a replica
  detail::LargerProgram larger{};
  std::vector<int> dropouts;
  uint64_t seed;
  optim::StepScalars scalars{};
  std::deque<optim::StepScalars> before{};  ///< of steps that may be left out, the newest last
  std::optional<CompiledPart> row{};        ///< one that the model can take, of several processes
  int64_t updates = 0;

  const nn::Graph& graph() const { return model.graph(); }
  const CompiledOptions& options() const { return model.options(); }

  /// Zeros, but for states that the rule begins elsewhere.
  Array first_value(const SlotOf& slot) const {
    Array array = Array::zeros(slot.type.dtype, slot.type.shape);
    if (slot.slot == Slot::state)
      for (int k = 0; k < rule.num_states(); ++k)
        if (slot.name.ends_with(fmt::format(".{}", rule.state_name(k))))
          std::ranges::fill(array.as<float>(), static_cast<float>(rule.state_start(k)));
    return array;
  }

  LoweredProgram lowered(int64_t rows, int64_t steps = 1) const {
    return lower_step(graph(), loss, rule,
                      {.batch = rows,
                       .replicas = options().replicas,
                       .product = options().product,
                       .target = target_type(graph(), loss, rows),
                       .outputs = options().outputs,
                       .leaves_out_bad = options().leaves_out_bad,
                       .steps = steps});
  }

  /// Of so many rows, or of more, filled up: nothing is compiled for a last batch.
  std::pair<int64_t, const Compiled*> program_of(int64_t steps, int64_t rows) {
    const auto found = programs.lower_bound({steps, rows});
    if (found != programs.end() && found->first.first == steps &&
        larger.serve(rows, found->first.second))
      return {found->first.second, &found->second};
    LoweredProgram program = lowered(rows, steps);
    const TimePoint begin = Clock::now();
    pjrt::Program compiled = model.client().compile(program.text, {.replicas = options().replicas});
    log(LogLevel::info, "compiled {} of {} rows on each of {} devices in {:.2f} s",
        steps == 1 ? "a step" : fmt::format("{} steps", steps), rows, options().replicas,
        std::chrono::duration<double>(Clock::now() - begin).count());
    const auto made =
        programs.emplace(std::pair(steps, rows), Compiled{std::move(program), std::move(compiled)});
    return {rows, &made.first->second};
  }

  Array dropout_keys(int64_t update) const {
    std::vector<uint32_t> words;
    for (const int place : dropouts) {
      const uint64_t key =
          random_key(seed, RandomPurpose::dropout,
                     {static_cast<uint64_t>(update), static_cast<uint64_t>(place), 1});
      words.push_back(static_cast<uint32_t>(key));
      words.push_back(static_cast<uint32_t>(key >> 32));
    }
    return array_of_list(std::vector<int64_t>{std::ssize(dropouts), 2}, words);
  }

  /// What a slot of a step has on this replica, unless it is kept there.
  Array value_of(const SlotOf& slot, const StepToCome& step, size_t replica, int64_t rows) const {
    const CompiledPart& part = (*step.parts)[replica];
    const CompiledPart& like = *step.like;
    switch (slot.slot) {
      case Slot::target: return filled_up(part.target, rows, like.target);
      case Slot::row_weights:
      case Slot::loss_weights: {
        std::vector<float> weights(static_cast<size_t>(rows), 0.F);
        if (slot.slot == Slot::loss_weights && part.weights.num_elements() > 0)
          std::ranges::copy(part.weights.as<float>(), weights.begin());
        else
          std::fill_n(weights.begin(), part.rows(), 1.F);
        return array_of_list(std::vector<int64_t>{rows}, weights);
      }
      case Slot::scale:
        return array_of_list(std::vector<int64_t>{}, std::vector{static_cast<float>(step.scale)});
      case Slot::scalars:
        return array_of_list(std::vector<int64_t>{nn::kLoweredScalars},
                             nn::lowered_scalars(step.scalars));
      case Slot::dropout_keys: return dropout_keys(step.update);
      case Slot::first_row: {
        const auto row = static_cast<uint64_t>(step.first_rows[replica]);
        return array_of_list(
            std::vector<int64_t>{2},
            std::vector{static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32)});
      }
      default: {
        const auto found = std::ranges::find(graph().inputs(), slot.name, &nn::Port::name);
        const auto input = static_cast<size_t>(found - graph().inputs().begin());
        return filled_up(part.inputs[input], rows, like.inputs[input]);
      }
    }
  }

  ShareOfStep share_of(const std::vector<CompiledPart>& parts, double rate) const {
    ShareOfStep share{.rate = rate};
    for (const CompiledPart& part : parts) {
      share.rows += part.rows();
      share.most = std::max(share.most, part.rows());
      share.labels += static_cast<double>(part.target.num_elements());
      share.counted +=
          static_cast<double>(loss.kernel().counted(tensor_of(part.target)).value_or(0));
    }
    return share;
  }

  /// By what the sum of the rows' losses is a mean: over those that count, where some labels do
  /// not.
  double scale_of(const ShareOfStep& all) const {
    const auto samples = static_cast<double>(all.rows);
    if (!loss.kernel().counted({})) return 1 / samples;
    return all.counted > 0 ? all.labels / samples / all.counted : 0;
  }

  detail::WholeSteps whole_of(const std::vector<std::vector<CompiledPart>>& steps,
                              const std::vector<double>& learning_rates) const {
    std::vector<ShareOfStep> own;
    for (size_t k = 0; k < steps.size(); ++k) own.push_back(share_of(steps[k], learning_rates[k]));
    const std::string said = detail::bytes_of(own);
    if (!options().exchange) return detail::whole_of({said}, 0);
    return detail::whole_of(model.exchanged(said), model.client().process());
  }

  CompiledPart part_of_rows(int64_t rows) const {
    const auto zeros = [&](const SlotOf& slot) {
      std::vector<int64_t> shape = slot.type.shape;
      shape[0] = rows;
      return Array::zeros(slot.type.dtype, std::move(shape));
    };
    CompiledPart part{.inputs = {}, .target = zeros(targets[0])};
    for (const SlotOf& slot : inputs) part.inputs.push_back(zeros(slot));
    return part;
  }

  /// Where this process has no row of a batch: the last that it had.
  const CompiledPart& like_of(const StepToCome& step) {
    const CompiledPart& largest = (*step.parts)[step.largest];
    if (largest.rows() == 0) {
      if (!row) row = part_of_rows(1);
      return *row;
    }
    if (!options().exchange) return largest;
    row.emplace(CompiledPart{.inputs = {}, .target = largest.target.rows(0, 1)});
    for (const Array& input : largest.inputs) row->inputs.push_back(input.rows(0, 1));
    return largest;
  }

  void check(const CompiledPart& part) const {
    model.check_inputs(part.inputs);
    for (const SlotOf& slot : targets)
      require_fits("target", part.target, slot.type, /*any_rows=*/true);
    if (const auto weights = part.weights.num_elements();
        weights > 0 && (part.weights.dtype() != DType::float32 || weights != part.rows()))
      throw UsageError(fmt::format("compiled step: weights are {}, expected float32 [{}]",
                                   part.weights.to_string(), part.rows()));
    for (const Array& one : part.inputs)
      if (one.shape()[0] != part.target.shape()[0])
        throw UsageError(fmt::format("compiled step: {} rows of inputs, {} of targets",
                                     one.shape()[0], part.target.shape()[0]));
    std::vector<int64_t> shape = graph().output_shape();
    shape.insert(shape.begin(), part.rows());
    loss.kernel().check_targets(at::empty(shape), tensor_of(part.target));
  }

  void check(const std::vector<std::vector<CompiledPart>>& steps) const {
    for (const std::vector<CompiledPart>& parts : steps) {
      if (std::ssize(parts) != model.replicas_here())
        throw UsageError(fmt::format("compiled step: got {} parts for {} replicas", parts.size(),
                                     model.replicas_here()));
      for (const CompiledPart& part : parts) check(part);
    }
  }

  StepToCome step_to_come(const std::vector<CompiledPart>& parts, const ShareOfStep& all,
                          int64_t first_row) {
    StepToCome step{.parts = &parts, .all = all};
    for (size_t replica = 0; replica < parts.size(); ++replica) {
      step.first_rows.push_back(first_row);
      first_row += parts[replica].rows();
      if (parts[replica].rows() > parts[step.largest].rows()) step.largest = replica;
    }
    if (all.rows == 0) throw UsageError("compiled step: a batch without rows");
    step.like = &like_of(step);
    step.scale = scale_of(all);
    return step;
  }

  /// Starts a run of all of them.
  CompiledResult::Run start(const std::vector<StepToCome>& steps) {
    int64_t most = 0;
    for (const StepToCome& step : steps) most = std::max(most, step.all.most);
    const auto& [rows, compiled] = program_of(std::ssize(steps), most);
    const auto replicas = static_cast<size_t>(model.replicas_here());
    std::vector<std::vector<pjrt::Buffer>> sent(replicas);
    std::vector<std::vector<const pjrt::Buffer*>> lists(replicas);
    for (size_t replica = 0; replica < replicas; ++replica) {
      sent[replica].reserve(compiled->lowered.arguments.size());
      for (const SlotOf& slot : compiled->lowered.arguments) {
        if (is_kept(slot.slot)) {
          lists[replica].push_back(&model.value(static_cast<int>(replica), slot.name));
          continue;
        }
        std::vector<Array> values;
        for (const StepToCome& step : steps) values.push_back(value_of(slot, step, replica, rows));
        sent[replica].push_back(
            model.client().to_device(stacked(std::move(values)), static_cast<int>(replica)));
        lists[replica].push_back(&sent[replica].back());
      }
    }
    CompiledResult::Run run{.results = compiled->program.run(lists, options().limit),
                            .steps = std::ssize(steps)};
    for (size_t k = 0; k < compiled->lowered.results.size(); ++k) {
      const SlotOf& slot = compiled->lowered.results[k];
      if (slot.slot == Slot::loss) run.loss = static_cast<int>(k);
      if (slot.slot == Slot::output) run.output = static_cast<int>(k);
      if (is_kept(slot.slot))
        for (size_t replica = 0; replica < replicas; ++replica)
          model.become(static_cast<int>(replica), slot.name, run.results.outputs[replica][k]);
    }
    return run;
  }

  void count(const StepToCome& step) {
    if (options().leaves_out_bad) before.push_back(scalars);
    if (before.size() > kMostTakenBack) before.pop_front();
    scalars = step.scalars;
    ++updates;
  }
};

CompiledTrainer::CompiledTrainer(nn::Graph graph, Loss loss, optim::Rule rule, pjrt::Client client,
                                 const CompiledOptions& options)
    : state_(std::make_unique<State>(
          State{.model = CompiledModel(std::move(graph), std::move(client), options),
                .loss = std::move(loss),
                .rule = std::move(rule),
                .inputs = {},
                .targets = {},
                .dropouts = {},
                .seed = options.seed})) {
  State& s = *state_;
  const auto classes = s.loss.kernel().classes();
  if (classes && *classes != s.graph().output_shape().back())
    throw UsageError(fmt::format("loss \"{}\" has weights of {} classes, the model gives {}",
                                 s.loss.name(), *classes, s.graph().output_shape().back()));
  s.dropouts = nn::dropouts_of(s.graph());
  std::vector<SlotOf> own;
  std::map<std::string, Array> begun;
  for (const SlotOf& slot : s.lowered(1).arguments) {
    if (slot.slot == Slot::target) s.targets.push_back(slot);
    if (slot.slot == Slot::input) s.inputs.push_back(slot);
    if (slot.slot != Slot::state && slot.slot != Slot::left_out) continue;
    own.push_back(slot);
    begun.emplace(slot.name, s.first_value(slot));
  }
  s.model.keep(own);
  s.model.load(begun);
}

CompiledTrainer::~CompiledTrainer() = default;
CompiledTrainer::CompiledTrainer(CompiledTrainer&&) noexcept = default;

void CompiledTrainer::load(const std::map<std::string, Array>& values) {
  state_->model.load(values);
}

std::map<std::string, Array> CompiledTrainer::values() const { return state_->model.values(); }
CompiledPart CompiledTrainer::part_without_rows() const { return state_->part_of_rows(0); }
void CompiledTrainer::check(const CompiledPart& part) const { state_->check(part); }
CompiledModel& CompiledTrainer::model() noexcept { return state_->model; }

void CompiledTrainer::set_updates(int64_t updates,
                                  const std::optional<optim::StepScalars>& scalars) {
  if (updates < 0)
    throw UsageError(fmt::format("compiled step: {} updates, expected 0 or more", updates));
  State& s = *state_;
  s.scalars = scalars.value_or(optim::StepScalars{});
  for (int64_t i = 0; i < updates && !scalars; ++i)
    s.scalars = s.rule.next(s.scalars, s.rule.learning_rate());
  s.before.clear();
  s.updates = updates;
  if (s.options().leaves_out_bad) s.model.load({{kLeftOut, Array::zeros(DType::float32, {})}});
}

int64_t CompiledTrainer::updates() const { return state_->updates; }
const optim::StepScalars& CompiledTrainer::scalars() const { return state_->scalars; }
void CompiledTrainer::set_seed(uint64_t seed) { state_->seed = seed; }

CompiledTrainer::Made CompiledTrainer::made() const {
  const State& s = *state_;
  const Made all{.updates = s.updates, .scalars = s.scalars};
  if (!s.options().leaves_out_bad) return all;
  const Array counted = s.model.value(0, kLeftOut).to_host(Deadline(s.options().limit));
  const auto left_out = static_cast<size_t>(counted.as<float>()[0]);
  if (left_out == 0) return all;
  if (left_out > s.before.size())
    throw UsageError(fmt::format(
        "compiled step: {} steps were left out since a loss was not finite, of which {} are "
        "remembered: read losses, and call take_back_left_out(), sooner",
        left_out, s.before.size()));
  return {.updates = s.updates - static_cast<int64_t>(left_out),
          .left_out = static_cast<int64_t>(left_out),
          .scalars = s.before[s.before.size() - left_out]};
}

int64_t CompiledTrainer::take_back_left_out() {
  const Made whole = made();
  if (whole.left_out > 0) set_updates(whole.updates, whole.scalars);
  return whole.left_out;
}

CompiledResult CompiledTrainer::step(const std::vector<CompiledPart>& parts, double learning_rate) {
  return std::move(steps({parts}, {learning_rate}).front());
}

std::vector<CompiledResult> CompiledTrainer::steps(
    const std::vector<std::vector<CompiledPart>>& steps,
    const std::vector<double>& learning_rates) {
  if (steps.empty() || steps.size() != learning_rates.size())
    throw UsageError(fmt::format("compiled step: {} steps, {} learning rates", steps.size(),
                                 learning_rates.size()));
  State& s = *state_;
  s.check(steps);
  const detail::WholeSteps whole = s.whole_of(steps, learning_rates);
  std::vector<StepToCome> to_come;
  for (size_t k = 0; k < steps.size(); ++k) {
    const optim::StepScalars& before = k == 0 ? s.scalars : to_come.back().scalars;
    StepToCome step = s.step_to_come(steps[k], whole.all[k], whole.rows_before[k]);
    step.scalars = s.rule.next(before, whole.all[k].rate);
    step.update = s.updates + static_cast<int64_t>(k);
    to_come.push_back(std::move(step));
  }
  const auto run = std::make_shared<CompiledResult::Run>(s.start(to_come));
  for (const StepToCome& step : to_come) s.count(step);
  std::vector<CompiledResult> results;
  for (size_t k = 0; k < to_come.size(); ++k) {
    CompiledResult& result = results.emplace_back(CompiledResult());
    result.run_ = run;
    result.number_ = static_cast<int64_t>(k);
    result.scale_ = to_come[k].scale;
    for (const CompiledPart& part : steps[k]) result.rows_.push_back(part.rows());
  }
  return results;
}

std::vector<Array> CompiledTrainer::predict(const std::vector<Array>& inputs) {
  return state_->model.predict(inputs);
}

}  // namespace tutti
