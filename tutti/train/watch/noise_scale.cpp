// The gradient noise scale of a training (report/noise_scale.h), from squares that the fused step
// adds up (sync/gradient_meter.h).

#include "tutti/train/report/noise_scale.h"

#include <span>

#include "tutti/sync/gradient_meter.h"
#include "tutti/train/watch/detail/watcher.h"

namespace tutti::detail {
namespace {

constexpr const char* kNoiseScaleName = "noise_scale";

class KeptNoiseScale final : public Kept {
 public:
  explicit KeptNoiseScale(NoiseScale& scale) : scale_(scale) {}
  std::string name() const override { return kNoiseScaleName; }
  std::string words() const override {
    const auto state = scale_.state();
    return words_of({state.begin(), state.end()});
  }
  void check(const CheckpointRead& read) const override { numbers_in(read); }
  void load(const CheckpointRead& read) override {
    const std::vector<double> numbers = numbers_in(read);
    scale_.restore(std::span(numbers).first<NoiseScale::kNumbers>());
  }

 private:
  static std::vector<double> numbers_in(const CheckpointRead& read) {
    return read.numbers(kNoiseScaleName, NoiseScale::kNumbers);
  }

  NoiseScale& scale_;
};

class NoiseScaleWatcher final : public StepWatcher {
 public:
  NoiseScaleWatcher(GradientMeter& meter, int64_t batch) : meter_(meter), batch_(batch) {
    meter_.begin_measuring();
  }

  // Parts are replicas, however many batches an update has.
  void after_step(const StepFacts& step) override {
    scale_.add(meter_.last_squares(), step.samples_by_replica());
  }
  NamedValues values() const override { return {{kNoiseScaleName, scale_.value()}}; }
  std::string end(History& history) override {
    history.noise_scale = scale_.value();
    return scale_.to_string(batch_);
  }
  std::unique_ptr<Kept> kept() override { return std::make_unique<KeptNoiseScale>(scale_); }

 private:
  GradientMeter& meter_;
  const int64_t batch_;  // samples of an update
  NoiseScale scale_;
};

}  // namespace

std::string why_no_noise_scale(const World& world) {
  if (world.num_replicas() > 1) return "";
  return "noise_scale: one replica's gradients say nothing of their noise; expected two replicas "
         "or "
         "more (--replicas 2; one_device computes them in turn)";
}

std::unique_ptr<StepWatcher> watch_noise_scale(Optimizer& optimizer, int64_t batch) {
  return std::make_unique<NoiseScaleWatcher>(*optimizer.updater().parts().meter, batch);
}

}  // namespace tutti::detail
