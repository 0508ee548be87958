// Replicas that are devices of a plugin: a step is one program of all of them, whose figures come
// later than it was begun.

#include "tutti/train/model/detail/by_plugin.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <span>
#include <utility>

#include "tutti/base/event.h"
#include "tutti/queues/host_copies.h"
#include "tutti/train/fit/detail/fit.h"
#include "tutti/train/model/detail/late_totals.h"

namespace tutti::detail {
namespace {

class ByPlugin final : public Pace {
 public:
  explicit ByPlugin(Fit& fit) : fit_(fit), replicas_(OnHost(fit.strategy()).replicas()) {}

  std::optional<Totals> run(Epoch& epoch, std::vector<Totals>& each) override {
    try {
      seen_ = seen_before(epoch, each);
      make_steps(epoch, each);
      fit_.take_back_left_out(epoch, each[0]);
      fit_.model().require_whole();
    } catch (const std::exception& error) {
      leave_others(fit_.strategy(), error.what());
      throw;
    }
    fit_.raise(epoch, each[0]);
    return all(epoch, each);
  }

 private:
  using Host = std::shared_ptr<const OwnBatch>;

  struct Begun {
    DistributedBatch batch;
    std::vector<Host> parts;  ///< by replica; null: it has none
    CompiledResult result;
  };

  void make_steps(Epoch& epoch, std::vector<Totals>& each) {
    plugin().begin(fit_.seed(), fit_.leaves_bad_steps_out());
    const int64_t per_run = fit_.compiled().steps_per_execution;
    for (int64_t s = epoch.first_step; s < epoch.steps && !fit_.ends(each[0]);) {
      fit_.before_steps(epoch, s);
      // Runs of all other lengths would each be a program.
      const int64_t until_pause = fit_.steps_until_pause(epoch, s);
      const int64_t steps = until_pause >= per_run ? per_run : 1;
      begin_steps(epoch, s, steps);
      const bool pauses = steps == until_pause;
      read(epoch, each, pauses ? 0 : ahead());
      count(epoch, s, s + steps, each);
      agree(each[0]);
      s += steps;
      if (!pauses && !fit_.ends(each[0])) continue;
      read(epoch, each, 0);
      if (!fit_.leaves_out(each[0])) fit_.save_between(epoch, each);
    }
  }

  Totals all(const Epoch& epoch, const std::vector<Totals>& each) const {
    return sum_over_world(fit_.strategy(), fit_.goals(),
                          PerReplica<Totals>(each, epoch.world->first_rank));
  }

  Totals seen_before(const Epoch& epoch, const std::vector<Totals>& each) const {
    Totals here;
    for (const Totals& own : each) here.add(own);
    Totals seen = all(epoch, each);
    for (size_t i = 0; i < seen.outputs.size(); ++i) {
      seen.outputs[i].width = i < here.outputs.size() ? here.outputs[i].width : 0;
      seen.outputs[i].states =
          i < here.outputs.size() ? here.outputs[i].states : std::vector<double>();
    }
    return seen;
  }

  const Membership& members() const { return fit_.strategy().membership(); }

  /// All processes end at the same step, whoever is asked to.
  void agree(Totals& totals) const {
    if (members().alone()) return;
    struct Said {
      int64_t signal, stop;
    };
    for (const Said& said :
         members().all_of(Said{totals.signal, static_cast<int64_t>(totals.stop)})) {
      totals.signal = std::max(totals.signal, static_cast<int>(said.signal));
      totals.stop = std::max(totals.stop, static_cast<Stop>(said.stop));
    }
  }

  PluginModel& plugin() const { return *fit_.model().plugin; }
  const Goal& goal() const { return fit_.goals()[0]; }
  /// Steps whose figures are not waited for before the next run begins: the host makes its batches
  /// ready meanwhile.
  size_t ahead() const {
    return static_cast<size_t>(std::max(int64_t{2}, fit_.compiled().steps_per_execution));
  }
  /// Of all that is on its way.
  Deadline patience() const {
    const auto steps = static_cast<int64_t>(std::max(size_t{1}, begun_.size()));
    return Deadline(2 * steps * fit_.strategy().world().time_limit);
  }

  /// Those that were left out are no steps.
  void count(const Epoch& epoch, int64_t first, int64_t end, std::vector<Totals>& each) {
    for (int64_t s = first; s < end; ++s) {
      if (fit_.leaves_out(each[0]) && s >= each[0].bad_step) return;
      if (!fit_.ends(each[0])) {
        fit_.after_step_of_all(epoch, s, seen_);
        each[0].signal = seen_.signal;
        each[0].stop = seen_.stop;
      }
      fit_.stepped(epoch, s, seen_);
    }
  }

  template <class Work>
  void for_each(const Epoch& epoch, const DistributedBatch& batch, const Work& work) const {
    for (size_t local = 0; local < replicas_.size(); ++local)
      if (batch.local_size(replicas_[local]) > 0)
        fit_.at_place(replicas_[local], epoch, batch, [&] { work(local); });
  }

  void begin_steps(const Epoch& epoch, int64_t first, int64_t count) {
    const TimedEvent timed("train.begin_steps", {"steps", count});
    plugin().get_ready();
    std::vector<std::vector<CompiledPart>> steps;
    std::vector<std::vector<Host>> hosts;
    for (int64_t step = first; step < first + count; ++step)
      steps.push_back(parts_of_step(epoch, epoch.batch(step), hosts.emplace_back()));
    std::vector<double> rates;
    std::vector<CompiledResult> results;
    try {
      while (std::ssize(rates) < count) {
        fit_.begin_step();
        rates.push_back(plugin().count_step());
      }
      results = plugin().steps(steps, rates);
    } catch (...) {
      plugin().uncount_steps(std::ssize(rates));
      throw;
    }
    for (size_t k = 0; k < results.size(); ++k)
      begun_.push_back({epoch.batch(first + static_cast<int64_t>(k)), std::move(hosts[k]),
                        std::move(results[k])});
  }

  std::vector<CompiledPart> parts_of_step(const Epoch& epoch, const DistributedBatch& batch,
                                          std::vector<Host>& hosts) const {
    hosts.resize(replicas_.size());
    std::vector<CompiledPart> parts(replicas_.size(), plugin().part_without_rows());
    for_each(epoch, batch, [&](size_t local) {
      hosts[local] = host_batch(batch.host_columns(replicas_[local]), fit_.model().num_inputs,
                                fit_.goals(), fit_.label_weights());
      parts[local] = plugin_part(*fit_.model().graph, goal().loss, hosts[local]->parts);
      plugin().check(parts[local]);
    });
    return parts;
  }

  /// Figures of all but the last `left` steps that have begun.
  void read(const Epoch& epoch, std::vector<Totals>& each, size_t left) {
    for (; begun_.size() > left; begun_.pop_front()) {
      const Begun& first = begun_.front();
      const double sum = first.result.sum(patience());
      if (!std::isfinite(sum) && each[0].bad_step < 0) say_what_is_bad(epoch, first, each);
      if (!fit_.leaves_out(each[0])) add(epoch, first, sum, each);
    }
  }

  void add(const Epoch& epoch, const Begun& step, double sum, std::vector<Totals>& each) {
    std::vector<Array> outputs;
    if (!goal().metrics.empty()) outputs = step.result.outputs(patience());
    for_each(epoch, step.batch, [&](size_t local) {
      const BatchParts& parts = step.parts[local]->parts;
      Totals& own = each[local];
      own.outputs.resize(1);
      // The plugin gives the sum of all replicas, which the one with the first row counts.
      const bool first = step.batch.first_row(replicas_[local]) == 0;
      own.outputs[0].add_loss(goal().loss.kernel(), parts.targets[0], first ? sum : 0.0);
      own.samples += step.batch.local_size(replicas_[local]);
      if (outputs.empty()) return;
      for (Totals* const totals : {&own, &seen_})
        totals->add_metrics(fit_.goals(), {tensor_of(outputs[local])}, parts);
    });
    add_seen(step, sum);
  }

  void add_seen(const Begun& step, double sum) {
    seen_.samples += step.batch.global_size();
    seen_.outputs.resize(1);
    OutputTotals& shown = seen_.outputs[0];
    if (!goal().loss.kernel().counted({})) {
      shown.loss += sum;
      return;
    }
    if (step.result.scale() == 0) return;
    const CompiledPart like = plugin().part_without_rows();
    double labels = 1;  // a sample
    for (const int64_t size : std::span(like.target.shape()).subspan(1))
      labels *= static_cast<double>(size);
    shown.loss += sum * labels;
    shown.counted += labels / step.result.scale();
  }

  /// By outputs that are computed again, by the weights before that step, which was left out.
  void say_what_is_bad(const Epoch& epoch, const Begun& step, std::vector<Totals>& each) {
    fit_.model().require_whole();
    std::vector<std::vector<Array>> inputs(replicas_.size());
    for_each(epoch, step.batch, [&](size_t local) {
      inputs[local] = plugin_inputs(*fit_.model().graph, step.parts[local]->parts.inputs);
    });
    fill_empty(inputs);
    std::vector<std::vector<Array>> outputs;
    if (!std::ranges::all_of(inputs, &std::vector<Array>::empty))
      outputs = plugin().predict(inputs);
    bool found = false;
    const auto say = [&](size_t local) {
      fit_.found_not_finite(replicas_[local], epoch, step.batch,
                            {step.parts[local]->parts, tensors_of(outputs[local]), {}},
                            each[local]);
      found = true;
    };
    for_each(epoch, step.batch, [&](size_t local) {
      const at::Tensor losses = goal().loss.kernel().per_sample(
          tensor_of(outputs[local][0]), step.parts[local]->parts.targets[0]);
      if (!found && !losses.isfinite().all().item<bool>()) say(local);
    });
    found = members().anybody(found);
    for_each(epoch, step.batch, [&](size_t local) {
      if (!found) say(local);
    });
    for (Totals& own : each) own.bad_step = step.batch.step();
  }

  Fit& fit_;
  std::vector<ReplicaContext> replicas_;
  std::deque<Begun> begun_;
  /// What steps show: the loss over all replicas' samples, metrics over those of this process.
  Totals seen_;
};

}  // namespace

std::unique_ptr<Pace> make_by_plugin(Fit& fit) { return std::make_unique<ByPlugin>(fit); }

}  // namespace tutti::detail
