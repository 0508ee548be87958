/// WeightAverage: an exponential moving average of a model's weights, beside the training.
///
///   auto average = std::make_shared<WeightAverage>(model, WeightAverageOptions{.momentum = 0.99});
///   model.fit(train, {.epochs = 5, .validation = test, .callbacks = {average}});
///   const auto averaged = average->use();    // until it goes out of scope
///   model.evaluate(test);
///   model.save("averaged.safetensors");
#pragma once

#include <memory>
#include <string>

#include "tutti/train/callbacks/callbacks.h"
#include "tutti/train/model/model.h"

namespace tutti {

class WeightAverage;

namespace detail {
/// The one among the callbacks of a fit() of these modules; null: none. UsageError for a second,
/// and for one that was made for another Model. Not for users.
std::shared_ptr<WeightAverage> weight_average_of(const Callbacks& callbacks,
                                                 const ReplicatedModules& modules);
}  // namespace detail

struct WeightAverageOptions {
  double momentum =
      0.99;               ///< >= 0 and below 1: average = momentum average + (1 - momentum) weights
  bool validates = true;  ///< the validation of fit() is that of the averaged weights
};

/// A callback of fit(), on every worker: begins with the weights as they are, and takes those after
/// each update in, so that any number of replicas, threads or processes has the same bits of it.
/// Parameters that are trained; frozen ones and buffers (batch statistics) are the model's own. It
/// costs a copy of the parameters a worker, and a pass over them a step. In checkpoints of fit(): a
/// training goes on from those that have it. Further fit()s go on with it, as long as the same
/// parameters are trained. Validation, if it ends in an error or a signal, leaves the weights of
/// the training, also to a checkpoint that is written then. Refused, before the first step:
/// parameter servers, whose weights are elsewhere; meshes and shard "parameters", where no rank has
/// all; local updates, where each has its own; strategy tpu; and more than one in a training.
/// Thread rule: that of Model; what fit() calls, as a Callback.
class WeightAverage final : public Callback {
 public:
  /// UsageError for a momentum out of range.
  explicit WeightAverage(const Model& model, const WeightAverageOptions& options = {});

  int64_t steps() const noexcept;  ///< updates that were taken in

  /// The averaged weights in all replicas of this worker, until the last copy of what is returned
  /// has gone; then those are there again, to the bit. Between runs; collective over workers, at
  /// both ends, since those of a host may share memory. Where it goes because an exception passes,
  /// each worker puts its own back without waiting for others; one that comes alone to meet them
  /// waits for the strategy's time limit, and then does. UsageError before a training, where they
  /// are in use already, and where other parameters are trained than those that were averaged.
  [[nodiscard]] std::shared_ptr<void> use();
  /// The same around the validation of fit(); null: it is that of the weights. Not for users.
  std::shared_ptr<void> use_to_validate();

  // ---- Callback ----
  std::string_view name() const override { return "weight_average"; }
  bool on_every_worker() const override { return true; }
  void on_train_begin(Training& training) override;
  void on_step_end(Training& training) override;
  std::unique_ptr<detail::Kept> kept() override;

 private:
  friend std::shared_ptr<WeightAverage> detail::weight_average_of(const Callbacks& callbacks,
                                                                  const ReplicatedModules& modules);
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tutti
