/// Runs the callbacks of one fit() on the chief, those that ask for it on every worker, and has
/// what the chief's decide carried out everywhere.
/// Not for users. Thread rule: step_end() on the thread of replica 0, all others between runs.
#pragma once

#include <exception>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/file.h"
#include "tutti/train/callbacks/callbacks.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

class CallbackRunner final : public Training {
 public:
  /// quantities  that there are after an epoch, validated or not
  /// together    all workers meet in every step; else none can decide for the others
  CallbackRunner(Model::State& model, const Callbacks& callbacks, int64_t epochs,
                 std::vector<std::string> quantities, bool together);

  // ---- what callbacks see ----
  int64_t epoch() const override { return epoch_; }
  int64_t epochs() const override { return epochs_; }
  int64_t step() const override { return step_; }
  int64_t epoch_steps() const override { return epoch_steps_; }
  int64_t epoch_step() const override { return epoch_step_; }
  int64_t epoch_samples() const override { return epoch_samples_; }
  const std::vector<std::string>& quantities() const override { return quantities_; }
  const NamedValues& values() override;
  double learning_rate() const override;
  void stop(std::string why) override;
  void set_learning_rate(double learning_rate) override;
  void write(const std::filesystem::path& path, std::string_view text) override;
  void save(std::filesystem::path path) override;
  void keep_weights() override;
  void put_back_weights() override;

  // ---- what fit() calls; the first four on every worker, in the same order ----
  void train_begin();
  void epoch_begin(int64_t epoch, int64_t steps);
  /// In place of epoch_begin(): the epoch had begun, and `done` of its steps, before a checkpoint.
  void epoch_goes_on(int64_t epoch, int64_t steps, int64_t done);
  void epoch_end(const NamedValues& values);
  /// Not after an error.
  void train_end(const NamedValues& last);
  /// By replica 0 of a worker, before its part of a step.
  void step_begin();
  /// The same after it; `totals` are that replica's, `samples` those of the epoch so far.
  void step_end(int64_t epoch_step, int64_t step, int64_t samples, const Totals& totals);

  bool any() const noexcept { return !callbacks_.empty(); }
  /// What the callbacks of this worker want; and whether any has asked for an end.
  Stop wants() const noexcept {
    return failure_ ? Stop::failed : stops_ ? Stop::asked_for : Stop::no;
  }
  bool ends() const noexcept { return stops_; }
  /// Throws what a callback threw; on other workers an Error that says that one did.
  [[noreturn]] void rethrow() const;
  bool together() const noexcept { return together_; }
  /// Files that could not be written, in words; this worker's.
  std::vector<std::string> lost() const;

  // ---- checkpoints ----
  /// State of the callbacks that have one, by place and name; of the chief's.
  std::map<std::string, std::string> states() const;
  const KeptWeights& kept() const noexcept { return kept_; }
  /// After train_begin(), on every worker.
  void restore(const std::map<std::string, std::string>& states, KeptWeights kept, bool ended);

  /// Whether this worker is, since the one before was lost: its callbacks begin here.
  void be_chief(bool is);

 private:
  using Hook = void (Callback::*)(Training&);
  void call(Hook hook, bool chiefs_alone = false);
  std::string place_words() const;
  void carry_out();
  void exchange();
  void require_together(const char* what) const;
  void require_epoch_end(const char* what) const;
  void copy_weights();
  void write_weights();
  void save_weights(const std::filesystem::path& path);
  void count_lost(const std::filesystem::path& path, const WriteError& error);

  Model::State& model_;
  const Callbacks& callbacks_;
  const int64_t epochs_;
  const std::vector<std::string> quantities_;
  const bool together_;
  bool chief_;  // all callbacks run here, and decide
  int64_t epoch_ = 0;
  int64_t step_ = 0;
  int64_t epoch_steps_ = 0;
  int64_t epoch_step_ = 0;
  int64_t epoch_samples_ = 0;
  const Totals* totals_ = nullptr;  // of a step, until somebody asks for its values
  NamedValues values_;              // that callbacks see
  std::string running_;             // name of the callback that runs
  std::exception_ptr failure_;      // what one of them threw
  bool in_step_ = false;            // on_step_begin or on_step_end runs
  bool begins_step_ = false;        // of these the first
  bool stops_ = false;              // asked for: what follows too, until it is carried out
  bool keeps_ = false;
  bool puts_back_ = false;
  std::vector<std::filesystem::path> saves_;
  std::map<std::filesystem::path, std::string> lost_;  // why
  KeptWeights kept_;
};

}  // namespace tutti::detail
