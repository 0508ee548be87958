// How long the gradient of an update is, before it is clipped: the mean over an epoch, and the
// largest of all. Of the updates that are measured (sync/gradient_meter.h).

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/sync/gradient_meter.h"
#include "tutti/train/watch/detail/watcher.h"

namespace tutti::detail {
namespace {

constexpr const char* kGradientNormName = "gradient_norm";

struct GradientNorm {
  int64_t epoch = 0;  ///< that sum and updates are of
  double sum = 0;
  double updates = 0;
  double largest = 0;

  double mean() const {
    return updates > 0 ? sum / updates : std::numeric_limits<double>::quiet_NaN();
  }
};

class KeptGradientNorm final : public Kept {
 public:
  explicit KeptGradientNorm(GradientNorm& norm) : norm_(norm) {}
  std::string name() const override { return kGradientNormName; }
  std::string words() const override {
    return words_of({static_cast<double>(norm_.epoch), norm_.sum, norm_.updates, norm_.largest});
  }
  void check(const CheckpointRead& read) const override { read.numbers(kGradientNormName, 4); }
  void load(const CheckpointRead& read) override {
    const std::vector<double> numbers = read.numbers(kGradientNormName, 4);
    norm_ = {std::lround(numbers[0]), numbers[1], numbers[2], numbers[3]};
  }

 private:
  GradientNorm& norm_;
};

class GradientNormWatcher final : public StepWatcher {
 public:
  explicit GradientNormWatcher(GradientMeter& meter) : meter_(meter) { meter_.begin_measuring(); }

  void after_step(const StepFacts& step) override {
    const GradientSquares& squares = meter_.last_squares();
    if (squares.parts.empty() || !std::isfinite(squares.sum)) return;
    if (step.epoch != norm_.epoch) norm_ = {.epoch = step.epoch, .largest = norm_.largest};
    const double norm = std::sqrt(squares.sum);
    norm_.sum += squares.updates * norm;
    norm_.updates += squares.updates;
    norm_.largest = std::max(norm_.largest, norm);
  }
  NamedValues values() const override { return {{kGradientNormName, norm_.mean()}}; }
  std::string end(History&) override {
    return fmt::format("gradient norm: {:.4g} in the last epoch, at most {:.4g}", norm_.mean(),
                       norm_.largest);
  }
  std::unique_ptr<Kept> kept() override { return std::make_unique<KeptGradientNorm>(norm_); }

 private:
  GradientMeter& meter_;
  GradientNorm norm_;
};

}  // namespace

std::string why_no_gradient_norm(const World& world) {
  if (world.num_replicas() > 1) return "";
  return "gradient_norm: it is measured where gradients of replicas are added; expected two "
         "replicas "
         "or more (--replicas 2; one_device computes them in turn)";
}

std::unique_ptr<StepWatcher> watch_gradient_norm(Optimizer& optimizer, int64_t) {
  return std::make_unique<GradientNormWatcher>(*optimizer.updater().parts().meter);
}

}  // namespace tutti::detail
