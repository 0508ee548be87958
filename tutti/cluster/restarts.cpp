#include "tutti/cluster/restarts.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "tutti/cluster/environment.h"
#include "tutti/cluster/join.h"
#include "tutti/cluster/spawn.h"

namespace tutti {

Restarts::Verdict Restarts::after(const LaunchResult& life) {
  const WorkerResult* const root = life.root();
  if (most_ == 0 || life.exit_code == 0 || life.signal != 0 || root == nullptr) return {};
  if (root->is_bad_input() || root->error_class == "Interrupted") return {};
  if (root->step >= 0 && !failed_at_.insert(root->step).second)
    return {.words = fmt::format("step {} has failed for the second time: the job is not started "
                                 "again",
                                 root->step)};
  if (made_ == most_) return {.words = fmt::format("none of its {} restarts is left", made_)};
  ++made_;
  pause_ =
      root->step > furthest_ ? kFirstPause : std::clamp(2 * pause_, kFirstPause, kLongestPause);
  furthest_ = std::max(furthest_, root->step);
  return {
      .again = true,
      .pause = pause_,
      .words = fmt::format("{}the whole job is started again ({} of {}) in {} s",
                           root->step < 0 ? "" : fmt::format("that was in step {}; ", root->step),
                           made_, most_, pause_.count() / 1000)};
}

LaunchResult launch_with_restarts(LaunchOptions options, int most,
                                  const std::function<void(const std::string&)>& tell) {
  Restarts restarts(most);
  // Within another such job its id is that of these lives, too.
  if (most > 0 && id_of_all_lives().empty())
    options.environment.push_back(
        fmt::format("{}={}", detail::kLivesVariable, detail::random_id()));
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
