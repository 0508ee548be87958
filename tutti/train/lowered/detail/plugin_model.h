/// PluginModel: a Model's graph under strategy tpu. Its values are on the plugin's devices; those
/// of the modules are the host's copy, which CompiledUpdater brings up to date. Not for users.
///
/// Values go to the devices when they are first needed, and again after the host's were written.
/// Thread rule: that of Model.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/strategy/modules/replicated.h"
#include "tutti/sync/compiled/compiled_updater.h"
#include "tutti/train/lowered/compiled_trainer.h"

namespace tutti::detail {

class PluginModel final : public CompiledSteps {
 public:
  /// UsageError for an operator that cannot be compiled.
  PluginModel(nn::Graph graph, ReplicatedModules modules);
  ~PluginModel();
  PluginModel(const PluginModel&) = delete;
  PluginModel& operator=(const PluginModel&) = delete;

  /// Steps from now on are those; UsageError for what cannot be compiled.
  struct Training {
    Loss loss;
    optim::Rule rule;
    DType product = DType::float32;
    bool outputs = false;  ///< of steps are read, for metrics
  };
  /// Before the updater is made; nothing changes.
  struct Made;
  std::unique_ptr<Made> prepared(const Training& training) const;
  void compile(std::unique_ptr<Made> made, Updater& updater);
  /// The updater goes.
  void forget_compiled() noexcept;

  /// Of a training that begins: what dropouts are drawn by, and whether steps whose loss is not
  /// finite are left out.
  void begin(uint64_t seed, bool leaves_out_bad);
  /// UsageError, RowError for a part that no step takes.
  void check(const CompiledPart& part) const;
  CompiledPart part_without_rows() const;
  /// Before the rates of steps to come are asked for, and before predict(): devices have the newest
  /// values, also where the host's were written by an updater, load() or a checkpoint.
  void get_ready() { load_if_written(); }
  /// CompiledModel::average_buffers().
  void average_buffers() { model().average_buffers(); }
  /// Counts a step that steps() will start, and returns its learning rate.
  double count_step();
  /// Steps that were counted were not started.
  void uncount_steps(int64_t steps);
  /// CompiledTrainer::steps().
  std::vector<CompiledResult> steps(const std::vector<std::vector<CompiledPart>>& parts,
                                    const std::vector<double>& learning_rates);
  /// CompiledModel::check_inputs() and predict(), by what the devices have (get_ready()).
  void check_inputs(const std::vector<Array>& inputs) { model().check_inputs(inputs); }
  std::vector<std::vector<Array>> predict(const std::vector<std::vector<Array>>& inputs);
  std::vector<Array> predict(const std::vector<Array>& inputs);

  Newest newest() override;
  void take_buffers(const Newest& newest) override;
  int64_t take_back_left_out() override;

 private:
  static constexpr int64_t kNever = -1;

  const pjrt::Client& client() const;
  CompiledOptions options_of(const Made* made) const;
  CompiledModel& model();
  void make_trainer(Made& made) const;
  void require_frozen_alike() const;
  NamedTensors buffers_here() const;
  void load_if_written();
  std::map<std::string, Array> values_here() const;

  nn::Graph graph_;
  ReplicatedModules modules_;
  std::optional<CompiledModel> before_{};  ///< as long as nothing is compiled
  std::unique_ptr<Made> made_{};
  int64_t loaded_ = kNever;  ///< CompiledUpdater::writes() of what the devices have
};

/// UsageError for a module that is no graph: strategy tpu cannot compile it.
[[noreturn]] void throw_no_graph();

}  // namespace tutti::detail
