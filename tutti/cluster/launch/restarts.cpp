#include "tutti/cluster/launch/restarts.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/launch/detail/spawn.h"
#include "tutti/cluster/spec/detail/environment.h"

namespace tutti {
namespace {

std::string words_of_step(const WorkerResult& worker) {
  return worker.training <= 1 ? fmt::format("step {}", worker.step)
                              : fmt::format("step {} of training {}", worker.step, worker.training);
}

}  // namespace

Restarts::Verdict Restarts::after(const LaunchResult& life) {
  const WorkerResult* const root = life.root_elsewhere ? &*life.root_elsewhere : life.root();
  if (most_ == 0 || life.exit_code == 0 || life.signal != 0) return {};
  if (!life.silent_node.empty())
    return {.words = "the job is not started again: " + life.silent_node};
  if (root == nullptr) return {};
  if (root->is_bad_input() || root->error_class == "Interrupted") return {};
  const TrainingStep step{root->training, root->step};
  const bool has_step = root->step >= 0;
  if (has_step && !failed_at_.insert(step).second)
    return {.words = fmt::format("{} has failed for the second time: the job is not started again",
                                 words_of_step(*root))};
  if (made_ == most_) return {.words = fmt::format("none of its {} restarts is left", made_)};
  ++made_;
  const bool further = has_step && step > furthest_;
  pause_ = further ? kFirstPause : std::clamp(2 * pause_, kFirstPause, kLongestPause);
  if (further) furthest_ = step;
  return {
      .again = true,
      .pause = pause_,
      .words = fmt::format("{}the whole job is started again ({} of {}) in {} s",
                           has_step ? fmt::format("that was in {}; ", words_of_step(*root)) : "",
                           made_, most_, pause_.count() / 1000)};
}

LaunchResult launch_with_restarts(LaunchOptions options, int most,
                                  const std::function<void(const std::string&)>& tell) {
  Restarts restarts(most);
  const bool several_nodes = most > 0 && options.nodes.num_nodes > 1;
  if (several_nodes && options.prepare)
    throw UsageError(
        "launch: a job of several nodes that starts again as a whole prepares nothing");
  options.end_together = options.end_together || several_nodes;
  options.tell_endings = options.tell_endings || several_nodes;
  // Within another such job its id is that of these lives, too.
  if (most > 0 && id_of_all_lives().empty()) {
    const auto entry = [](const std::string& id) {
      return std::vector{fmt::format("{}={}", detail::kLivesVariable, id)};
    };
    options.nodes.word = detail::random_id();
    if (several_nodes)
      options.prepare = entry;  // gets the word of node 0
    else
      options.environment.push_back(entry(options.nodes.word).front());
  }
  const std::vector<std::string> environment = options.environment;
  for (int life = 1;; ++life) {
    LaunchResult result = launch(options);
    const Restarts::Verdict verdict = restarts.after(result);
    tell(failure_report(result));
    tell(verdict.words);
    if (!verdict.again) return result;
    std::this_thread::sleep_for(verdict.pause);
    options.environment = environment;
    options.environment.push_back(fmt::format("{}={}", detail::kRestartVariable, life));
  }
}

}  // namespace tutti
