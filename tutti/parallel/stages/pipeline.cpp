#include "tutti/parallel/stages/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/event.h"
#include "tutti/parallel/stages/detail/channel.h"
#include "tutti/parallel/stages/detail/pipeline_agreement.h"
#include "tutti/parallel/stages/detail/stage_run.h"
#include "tutti/parallel/stages/detail/tied_parameters.h"
#include "tutti/parallel/stages/tree_accumulator.h"

namespace tutti::parallel {

using detail::Channel;
using detail::Parcel;
using mesh::Kind;

namespace {

/// Processor time of the calling thread, which computes forward and backward on CPUs.
double thread_cpu_us() {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return 1e6 * static_cast<double>(spent.tv_sec) + 1e-3 * static_cast<double>(spent.tv_nsec);
}

/// A part of an action: for who listens to events, which, how long it took, and how much of that
/// its thread was on a core.
class PartOfAction {
 public:
  PartOfAction(std::string_view name, int stage, int microbatch)
      : name_(name),
        stage_(stage),
        microbatch_(microbatch),
        began_(events_wanted() ? Clock::now() : TimePoint{}),
        began_cpu_us_(began_ == TimePoint{} ? 0 : thread_cpu_us()) {}
  ~PartOfAction() {
    if (began_ != TimePoint{})
      emit(name_,
           {{"stage", int64_t{stage_}},
            {"microbatch", int64_t{microbatch_}},
            {"cpu_us", thread_cpu_us() - began_cpu_us_},
            {"us", std::chrono::duration<double, std::micro>(Clock::now() - began_).count()}});
  }
  PartOfAction(const PartOfAction&) = delete;

 private:
  const std::string_view name_;
  const int stage_, microbatch_;
  const TimePoint began_;  // zero: nobody listened
  const double began_cpu_us_;
};

}  // namespace

/// Tags: F into stage s is s, B into it stages + s; ties have those behind.
class Pipeline::Executor {
 public:
  Executor(Group group, mesh::Schedule schedule, std::vector<Stage> chunks, PipelineOptions options)
      : group_(std::move(group)),
        schedule_(std::move(schedule)),
        ties_(group_, schedule_,
              detail::agree_on_pipeline(group_, schedule_, chunks, options.limit), chunks,
              2 * schedule_.stages(), options.limit),
        sums_(chunks.size()),
        after_action_(std::move(options.after_action)) {
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
      const int stage = schedule_.stage_of(group_.rank(), chunk);
      const auto at = static_cast<size_t>(chunk);
      runs_.emplace_back(std::move(chunks[at]),
                         detail::StageRun::Place{.number = stage,
                                                 .rank = group_.rank(),
                                                 .first = stage == 0,
                                                 .last = stage + 1 == schedule_.stages()},
                         schedule_.split);
      ends_.push_back(made_ends(runs_.back(), options.limit));
    }
  }

  std::vector<std::vector<at::Tensor>> step(const Batch& batch) {
    std::vector<std::vector<at::Tensor>> sums;
    guarded("step", [&] {
      begin(batch, /*trains=*/true);
      ties_.open(batch.sizes);
      for (const mesh::Action& action : own_actions()) act(action, batch);
      ties_.finish();
      finish_channels();
      sums = taken_sums();
    });
    return sums;
  }

  void forward(const Batch& batch, const std::function<void(int, std::vector<at::Tensor>)>& take) {
    guarded("forward", [&] {
      begin(batch, /*trains=*/false);
      for (const mesh::Action& action : own_actions()) {
        if (action.kind != Kind::forward) continue;
        if (!is_empty(batch, action.microbatch)) evaluate(action, batch, take);
        end(action);
      }
      finish_channels();
    });
  }

  void send_ties() {
    guarded("send_ties", [&] { ties_.send_values(); });
  }

  const mesh::Schedule& schedule() const noexcept { return schedule_; }

 private:
  /// Of a stage here; two that lie here both share the channel between them. Null: at the ends of
  /// the model.
  struct Ends {
    std::shared_ptr<Channel> inputs, outputs;        // of F
    std::shared_ptr<Channel> of_inputs, of_outputs;  // of B: gradients
  };

  Ends made_ends(const detail::StageRun& run, Millis limit) {
    const int stage = run.place().number;
    Ends ends;
    if (!run.place().first) {
      ends.inputs = channel(Kind::forward, stage - 1, stage, run.stage().inputs, limit);
      ends.of_inputs = channel(Kind::backward, stage, stage - 1, run.stage().inputs, limit);
    }
    if (!run.place().last) {
      ends.outputs = channel(Kind::forward, stage, stage + 1, run.stage().outputs, limit);
      ends.of_outputs = channel(Kind::backward, stage + 1, stage, run.stage().outputs, limit);
    }
    return ends;
  }

  std::shared_ptr<Channel> channel(Kind kind, int from, int to, std::vector<Border> borders,
                                   Millis limit) {
    const bool backward = kind == Kind::backward;
    if (backward) std::erase_if(borders, [](const Border& one) { return !is_floating(one.dtype); });
    const int tag = (backward ? schedule_.stages() : 0) + to;
    std::shared_ptr<Channel>& one = channels_[tag];
    if (!one)
      one =
          std::make_shared<Channel>(group_,
                                    Channel::Content{.what = std::string(1, mesh::letter_of(kind)),
                                                     .from = {from, schedule_.rank_of(from)},
                                                     .to = {to, schedule_.rank_of(to)},
                                                     .tag = tag,
                                                     .tensors = std::move(borders)},
                                    limit);
    return one;
  }

  const std::vector<mesh::Action>& own_actions() const {
    return schedule_.actions[static_cast<size_t>(group_.rank())];
  }
  static bool is_empty(const Batch& batch, int microbatch) {
    return batch.sizes[static_cast<size_t>(microbatch)] == 0;
  }

  /// Whatever goes wrong here ends the others' waits too: they would wait for what never comes.
  void guarded(std::string_view what, const std::function<void()>& action) {
    try {
      action();
    } catch (const std::exception& error) {
      group_.abort(fmt::format("pipeline, rank {} in {}: {}", group_.rank(), what,
                               plain_words(error.what())));
      throw;
    } catch (...) {
      group_.abort(fmt::format("pipeline, rank {} in {}: unknown error", group_.rank(), what));
      throw;
    }
  }

  void begin(const Batch& batch, bool trains) {
    if (static_cast<int>(batch.sizes.size()) != schedule_.microbatches ||
        std::ranges::any_of(batch.sizes, [](int64_t size) { return size < 0; }))
      throw UsageError(fmt::format(
          "pipeline: got microbatches of [{}] samples, expected {} of 0 or more (schedule {})",
          fmt::join(batch.sizes, ", "), schedule_.microbatches, schedule_.name));
    for (detail::StageRun& run : runs_) {
      if (run.place().first && !batch.inputs)
        throw UsageError("pipeline: no function for inputs on the rank of the first stage");
      if (run.place().last && trains && !batch.loss)
        throw UsageError("pipeline: no loss on the rank of the last stage");
      run.begin(batch.sizes, batch.place, batch.loss);
    }
    for (const auto& [tag, channel] : channels_)
      if (trains || tag < schedule_.stages()) channel->open(batch.sizes);
  }

  void finish_channels() {
    for (const auto& [tag, channel] : channels_) channel->finish();
  }

  void named(std::string_view place, const mesh::Action& action,
             const std::function<void()>& work) {
    detail::with_words(
        [&] {
          return fmt::format("{}, {} {} of microbatch {}", run_of(action).name(), place,
                             mesh::letter_of(action.kind), action.microbatch);
        },
        work);
  }
  void nudge(const mesh::Action& action) {
    named("before", action, [&] { group_.engine().nudge(); });
  }
  void end(const mesh::Action& action) {
    if (after_action_) named("after", action, after_action_);
  }

  void evaluate(const mesh::Action& action, const Batch& batch,
                const std::function<void(int, std::vector<at::Tensor>)>& take) {
    nudge(action);
    const int i = action.microbatch;
    Parcel outputs = run_of(action).evaluate(i, inputs_of(action, batch));
    if (const auto& next = ends_of(action).outputs)
      next->put(i, std::move(outputs));
    else if (take)
      take(i, std::move(outputs.tensors));
  }

  Parcel inputs_of(const mesh::Action& action, const Batch& batch) {
    if (run_of(action).place().first) return {.tensors = batch.inputs(action.microbatch)};
    return taken(action, *ends_of(action).inputs);
  }

  // From another rank, which may have to be waited for.
  Parcel taken(const mesh::Action& action, Channel& from) {
    const PartOfAction event("pipeline.waited", run_of(action).place().number, action.microbatch);
    return from.take(action.microbatch);
  }

  // Of computing alone, without what it has waited for.
  template <class Work>
  auto timed(const mesh::Action& action, const Work& work) {
    constexpr std::array<std::string_view, 3> kNames{"pipeline.F", "pipeline.B", "pipeline.W"};
    detail::StageRun& run = run_of(action);
    const PartOfAction event(kNames[static_cast<size_t>(action.kind)], run.place().number,
                             action.microbatch);
    return work(run);
  }

  void act(const mesh::Action& action, const Batch& batch) {
    nudge(action);
    if (action.kind == Kind::forward && !is_empty(batch, action.microbatch)) {
      Parcel inputs = inputs_of(action, batch);
      Parcel outputs = timed(action, [&](detail::StageRun& run) {
        return run.forward(action.microbatch, std::move(inputs));
      });
      if (const auto& next = ends_of(action).outputs)
        next->put(action.microbatch, std::move(outputs));
    }
    if (action.kind == Kind::backward && !is_empty(batch, action.microbatch)) {
      const auto& next = ends_of(action).of_outputs;
      Parcel above = next ? taken(action, *next) : Parcel();
      Parcel gradients = timed(action, [&](detail::StageRun& run) {
        return run.backward(action.microbatch, std::move(above));
      });
      if (const auto& before = ends_of(action).of_inputs)
        before->put(action.microbatch, std::move(gradients));
    }
    if (action.kind == (schedule_.split ? Kind::weight : Kind::backward)) add_leaf(action, batch);
    end(action);
  }

  void add_leaf(const mesh::Action& action, const Batch& batch) {
    detail::StageRun& run = run_of(action);
    std::vector<at::Tensor> leaf(run.parameters().size());
    if (is_empty(batch, action.microbatch)) {
      ties_.pass_none(run.place().number, action.microbatch);
    } else {
      const auto gradients = [&](detail::StageRun& own) {
        return own.gradients(action.microbatch);
      };
      leaf = schedule_.split ? timed(action, gradients) : gradients(run);
      ties_.pass(run.place().number, action.microbatch, run.parameters(), leaf);
    }
    sums_[static_cast<size_t>(action.chunk)].add(leaf);
  }

  std::vector<std::vector<at::Tensor>> taken_sums() {
    std::vector<std::vector<at::Tensor>> all;
    for (size_t chunk = 0; chunk < runs_.size(); ++chunk) {
      const detail::StageRun& run = runs_[chunk];
      all.push_back(sums_[chunk].take());
      ties_.put_sums(run.place().number, run.parameters(), all.back());
      all.back().resize(run.num_of_module());
    }
    return all;
  }

  detail::StageRun& run_of(const mesh::Action& action) {
    return runs_[static_cast<size_t>(action.chunk)];
  }
  const Ends& ends_of(const mesh::Action& action) const {
    return ends_[static_cast<size_t>(action.chunk)];
  }

  Group group_;
  mesh::Schedule schedule_;
  detail::TiedParameters ties_;
  std::map<int, std::shared_ptr<Channel>> channels_;  // by tag
  std::vector<detail::StageRun> runs_;                // by chunk, as the next two
  std::vector<Ends> ends_;
  std::vector<TreeAccumulator> sums_;
  std::function<void()> after_action_;
};

Pipeline::Pipeline(Group group, mesh::Schedule schedule, std::vector<Stage> chunks,
                   PipelineOptions options)
    : executor_(std::make_unique<Executor>(std::move(group), std::move(schedule), std::move(chunks),
                                           std::move(options))) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

std::vector<std::vector<at::Tensor>> Pipeline::step(const Batch& batch) {
  return executor_->step(batch);
}

void Pipeline::forward(const Batch& batch,
                       const std::function<void(int, std::vector<at::Tensor>)>& take) {
  executor_->forward(batch, take);
}

void Pipeline::send_ties() { executor_->send_ties(); }

const mesh::Schedule& Pipeline::schedule() const noexcept { return executor_->schedule(); }

}  // namespace tutti::parallel
