// Whether all workers were asked for the same training: compared once, before its first step.
#include "tutti/train/model/detail/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/detail/cache.h"
#include "tutti/nn/dense_kernel.h"
#include "tutti/train/model/detail/settings.h"

namespace tutti::detail {
namespace {

std::string_view name_of(OnNan on_nan) {
  if (on_nan == OnNan::stop) return "stop";
  return on_nan == OnNan::end ? "end" : "go_on";
}

std::string data_words(const data::Dataset& data) {
  std::vector<std::string> columns;
  for (const data::Column& column : data.columns())
    columns.push_back(fmt::format("{} [{}]", name_of(column.dtype), fmt::join(column.shape, ", ")));
  const size_t caches = data::detail::caches_of(data).size();
  return fmt::format("{} samples of {} in batches of {}{}", data.num_samples(),
                     fmt::join(columns, ", "), data.global_batch_size(),
                     caches == 0 ? "" : fmt::format(" behind {} cache() in memory", caches));
}

std::string bad_words(const data::OnBad& on_bad) {
  if (!on_bad.replace) return "an error";
  return fmt::format("replaced, at most {} of an epoch", on_bad.replace->at_most);
}

std::string checkpoint_words(const CheckpointOptions& options) {
  if (options.folder.empty()) return "none";
  return fmt::format("every {} steps, resume {}, kept {} and {} by {}", options.every_steps,
                     options.resume, options.newest_kept, options.best_kept, options.monitor);
}

/// The first line in which they differ, of both; they have as many.
std::pair<std::string, std::string> first_difference(const std::string& one,
                                                     const std::string& other) {
  const auto lines = [](const std::string& text) {
    std::vector<std::string> all;
    for (const auto line : std::views::split(text, '\n'))
      all.emplace_back(line.begin(), line.end());
    return all;
  };
  const auto left = lines(one);
  const auto right = lines(other);
  const auto [mine, theirs] = std::ranges::mismatch(left, right);
  return {mine == left.end() ? "nothing more" : *mine,
          theirs == right.end() ? "nothing more" : *theirs};
}

}  // namespace

std::string fit_words(const Compiled& compiled, const data::Dataset& train,
                      const FitOptions& options, uint64_t seed) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, const auto& value) {
    lines.push_back(fmt::format("{}: {}", what, value));
  };
  add("seed", seed);
  add("training data", data_words(train));
  add("validation data", options.validation ? data_words(*options.validation) : "none");
  add("a damaged sample", bad_words(options.loader.on_bad));
  add("epochs", options.epochs);
  add("initial_epoch", options.initial_epoch);
  add("steps_per_epoch", options.steps_per_epoch);
  add("max_steps", options.max_steps);
  add("validation_freq", options.validation_freq);
  add("accumulate", options.accumulate);
  add("class_weight", fmt::format("{}", options.class_weight));
  add("on_nan", name_of(options.on_nan));
  add("checkpoints", checkpoint_words(options.checkpoints));
  std::vector<std::string_view> callbacks;
  for (const auto& callback : options.callbacks) callbacks.push_back(callback->name());
  add("callbacks", fmt::format("[{}]", fmt::join(callbacks, ", ")));
  add("optimizer", compiled.optimizer_words);
  add("schedule", compiled.rate ? compiled.rate->name() : "none");
  add("rates at steps 0, 1, 2, 5, 10, 20, ...", fmt::format("{}", rates_of(compiled.rate)));
  add("precision", name_of(compiled.precision));
  add("dense kernel", nn::name_of(nn::dense_kernel()));
  add("loss_scaling", compiled.optimizer.loss_scale() ? "on" : "off");
  for (const Goal& goal : compiled.goals) add("loss", goal_words(goal));
  for (std::string& line : lines) std::ranges::replace(line, '\n', ' ');
  return fmt::format("{}", fmt::join(lines, "\n"));
}

std::vector<std::string> texts_of_all(Strategy& strategy, const std::string& own) {
  const World& world = strategy.world();
  std::vector<std::string> texts;
  strategy.run([&](ReplicaContext& replica) {
    const auto gathered = [&](auto mine, auto& all) {
      replica.group()
          .all_gather(span_of(std::span(mine)), span_of(std::span(all)), world.time_limit)
          .wait(world.time_limit);
    };
    std::vector<int64_t> lengths(static_cast<size_t>(world.size));
    gathered(std::array{std::ssize(own)}, lengths);
    const auto longest = static_cast<size_t>(std::ranges::max(lengths));
    std::vector<uint8_t> padded(own.begin(), own.end());
    padded.resize(longest);
    std::vector<uint8_t> all(longest * lengths.size());
    if (longest > 0) gathered(std::move(padded), all);
    if (replica.local_rank() != 0) return;
    for (size_t rank = 0; rank < lengths.size(); ++rank) {
      const auto text = std::span(all).subspan(rank * longest, static_cast<size_t>(lengths[rank]));
      texts.emplace_back(text.begin(), text.end());
    }
  });
  return texts;
}

void require_same_fit(Strategy& strategy, const std::string& own) {
  const World& world = strategy.world();
  if (world.apart) return;
  const auto all = texts_of_all(strategy, own);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto [first, other] = first_difference(all[0], all[rank]);
    throw Mismatch(
        fmt::format("fit: worker {} was asked for another training than worker 0\n"
                    "  worker 0 has {}\n  worker {} has {}\n"
                    "  every worker makes the same calls, with the same options and data",
                    rank / static_cast<size_t>(world.local), first,
                    rank / static_cast<size_t>(world.local), other));
  }
}

}  // namespace tutti::detail
