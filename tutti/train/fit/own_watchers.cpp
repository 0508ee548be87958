// Watchers that compile() is not asked for: shares that move, cores that are not there, and a
// worker that is slow on purpose.

#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/random.h"
#include "tutti/strategy/moving_shares.h"
#include "tutti/train/fit/detail/core_watch.h"
#include "tutti/train/fit/detail/parts.h"

namespace tutti::detail {
namespace {

constexpr const char* kSharesName = "shares";

// Changes so far; none where shares stay.
class KeptShares final : public Kept {
 public:
  explicit KeptShares(const Strategy& strategy) : strategy_(strategy) {}
  std::string name() const override { return kSharesName; }

  std::string words() const override {
    const MovingShares* const moving = strategy_.moving_shares();
    return (moving ? moving->so_far() : data::ShareSchedule())
        .to_json(strategy_.world().num_replicas());
  }
  void check(const CheckpointRead& read) const override { shares_in(read.manifest, read.what); }
  void load(const CheckpointRead& read) override {
    MovingShares* const moving = strategy_.moving_shares();
    if (moving == nullptr) return;
    const bool as_many = read.manifest.replicas == strategy_.world().num_replicas();
    moving->go_on(as_many ? shares_in(read.manifest, read.what) : data::ShareSchedule(),
                  read.manifest.version);
  }

 private:
  const Strategy& strategy_;
};

class SharesWatcher final : public StepWatcher {
 public:
  SharesWatcher(Model::State& model, const data::Dataset& train, const FitOptions& options)
      : model_(model), train_(train), options_(options) {}

  std::string before_steps() override {
    MovingShares* const moving = model_.strategy.moving_shares();
    if (moving == nullptr) return "";
    const bool moved = moving->move([this](std::span<const int64_t> shares) {
      return model_
          .objection_of_batch_norms(train_, options_,
                                    std::vector<double>(shares.begin(), shares.end()))
          .empty();
    });
    return moved ? moving->news() : "";
  }
  int64_t steps_until_pause() const override {
    const MovingShares* const moving = model_.strategy.moving_shares();
    return moving ? moving->steps_until_next() : StepWatcher::steps_until_pause();
  }
  std::unique_ptr<Kept> kept() override { return std::make_unique<KeptShares>(model_.strategy); }

 private:
  Model::State& model_;
  const data::Dataset& train_;
  const FitOptions& options_;
};

class CoresWatcher final : public StepWatcher {
 public:
  explicit CoresWatcher(int threads) : cores_(threads) {}
  void forward_begins() override { cores_.begin(); }
  void update_ended() override { cores_.end(); }

 private:
  CoreWatch cores_;
};

// For experiments (FitOptions::slow).
class SlowReplicas final : public StepWatcher {
 public:
  SlowReplicas(const SlowWorker& slow, uint64_t seed, Optimizer& optimizer)
      : slow_(slow), seed_(seed), optimizer_(optimizer) {}

  void batch_begins() override {  // waiting is not computing
    if (auto* const late = optimizer_.updater().parts().late) late->complete();
  }

  void forward_ended(const WatchedBatch& place) override {
    const uint64_t bits =
        random_key(seed_, RandomPurpose::test,
                   {static_cast<uint64_t>(place.epoch), static_cast<uint64_t>(place.batch)});
    if (uniform_double(bits) >= slow_.probability) return;
    // Backward takes about twice as long as forward.
    std::this_thread::sleep_for(3 * (slow_.factor - 1) * (Clock::now() - place.begin));
  }

 private:
  const SlowWorker slow_;
  const uint64_t seed_;
  Optimizer& optimizer_;
};

}  // namespace

std::unique_ptr<StepWatcher> watch_shares(Model::State& model, const data::Dataset& train,
                                          const FitOptions& options) {
  return std::make_unique<SharesWatcher>(model, train, options);
}

std::unique_ptr<StepWatcher> watch_cores(int threads) {
  return std::make_unique<CoresWatcher>(threads);
}

std::unique_ptr<StepWatcher> watch_slow_worker(const SlowWorker& slow, uint64_t seed,
                                               Optimizer& optimizer) {
  return std::make_unique<SlowReplicas>(slow, seed, optimizer);
}

data::ShareSchedule shares_in(const CheckpointManifest& manifest, const std::string& what) {
  try {
    return data::ShareSchedule::from_json(manifest.kept.at(kSharesName), manifest.replicas, what);
  } catch (const UsageError& error) {
    throw DataError(error.what());
  }
}

}  // namespace tutti::detail
