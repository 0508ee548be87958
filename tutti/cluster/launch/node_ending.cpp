#include "tutti/cluster/launch/detail/node_ending.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"

namespace tutti::detail {

using nlohmann::json;

NodeEnding ending_of(const LaunchResult& result, int node) {
  NodeEnding ending{.node = node,
                    .exit_code = result.exit_code,
                    .signal = result.signal,
                    .root_cause = result.root_cause};
  if (const WorkerResult* const root = result.root()) {
    ending.worker = root->worker;
    ending.error_class = root->error_class;
    ending.training = root->training;
    ending.step = root->step;
  }
  return ending;
}

std::string encode(const NodeEnding& ending) {
  return json{ending.node,   ending.exit_code,   ending.signal,   ending.root_cause,
              ending.worker, ending.error_class, ending.training, ending.step}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

NodeEnding decode_ending(std::string_view text) {
  try {
    const json fields = json::parse(text);
    NodeEnding ending;
    fields.at(0).get_to(ending.node);
    fields.at(1).get_to(ending.exit_code);
    fields.at(2).get_to(ending.signal);
    fields.at(3).get_to(ending.root_cause);
    fields.at(4).get_to(ending.worker);
    fields.at(5).get_to(ending.error_class);
    fields.at(6).get_to(ending.training);
    fields.at(7).get_to(ending.step);
    return ending;
  } catch (const json::exception& error) {
    throw Error(
        fmt::format("how the job has ended on another node cannot be read: {}", error.what()));
  }
}

void take_over(LaunchResult& result, std::vector<NodeEnding> all, int node) {
  std::ranges::sort(all, {}, &NodeEnding::node);
  const auto signal = std::ranges::find_if(all, [](const auto& ending) { return ending.signal; });
  if (signal != all.end() && result.signal == 0) result.signal = signal->signal;
  const auto is_cause = [](const NodeEnding& ending) {
    return ending.worker >= 0 && !WorkerResult{.error_class = ending.error_class}.follows();
  };
  auto cause = std::ranges::find_if(all, is_cause);
  if (cause == all.end())
    cause = std::ranges::find_if(all, [](const auto& ending) { return ending.worker >= 0; });
  if (cause == all.end())
    cause = std::ranges::find_if(all, [](const auto& ending) { return ending.exit_code != 0; });
  if (cause == all.end() || cause->node == node) return;
  if (result.exit_code == 0) {
    result.exit_code = 1;
    result.root_worker = cause->worker;
    result.root_cause = cause->root_cause;
  }
  result.root_elsewhere = WorkerResult{.worker = cause->worker,
                                       .exit_code = cause->exit_code,
                                       .error_class = cause->error_class,
                                       .training = cause->training,
                                       .step = cause->step};
}

}  // namespace tutti::detail
