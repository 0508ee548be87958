#include "tutti/cluster/launch/detail/node_ending.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/json.h"

namespace tutti::detail {

NodeEnding ending_of(const LaunchResult& result, int node) {
  NodeEnding ending{.node = node,
                    .exit_code = result.exit_code,
                    .signal = result.signal,
                    .root_cause = result.root_cause,
                    .worker = result.root_worker};
  if (const WorkerResult* const root = result.root()) {
    ending.own = true;
    ending.error_class = root->error_class;
    ending.training = root->training;
    ending.step = root->step;
  }
  return ending;
}

std::string encode(const NodeEnding& ending) {
  return dump_json_lossy(Json{ending.node, ending.exit_code, ending.signal, ending.root_cause,
                              ending.worker, ending.own, ending.error_class, ending.training,
                              ending.step});
}

NodeEnding decode_ending(std::string_view text) {
  try {
    const Json fields = parse_json(text);
    NodeEnding ending;
    fields.at(0).get_to(ending.node);
    fields.at(1).get_to(ending.exit_code);
    fields.at(2).get_to(ending.signal);
    fields.at(3).get_to(ending.root_cause);
    fields.at(4).get_to(ending.worker);
    fields.at(5).get_to(ending.own);
    fields.at(6).get_to(ending.error_class);
    fields.at(7).get_to(ending.training);
    fields.at(8).get_to(ending.step);
    return ending;
  } catch (const JsonError& error) {
    throw Error(
        fmt::format("how the job has ended on another node cannot be read: {}", error.what()));
  }
}

void take_over(LaunchResult& result, std::vector<NodeEnding> all, int node,
               const std::string& silent) {
  if (!silent.empty()) {
    result.silent_node = silent;
    if (result.exit_code != 0) return;
    result.exit_code = 1;
    result.root_cause = "it is not known how the job has ended on all nodes: " + silent;
    return;
  }
  std::ranges::sort(all, {}, &NodeEnding::node);
  const auto first = [&](auto&& is_one) { return std::ranges::find_if(all, is_one); };
  const auto signal = first([](const NodeEnding& ending) { return ending.signal != 0; });
  if (signal != all.end() && result.signal == 0) result.signal = signal->signal;
  auto cause = first([](const NodeEnding& ending) {
    return ending.own && !WorkerResult{.error_class = ending.error_class}.follows();
  });
  if (cause == all.end()) cause = first([](const NodeEnding& ending) { return ending.own; });
  if (cause == all.end())
    cause = first([](const NodeEnding& ending) { return ending.exit_code != 0; });
  if (cause == all.end()) return;
  if (result.exit_code == 0) {
    result.exit_code = 1;
    result.root_worker = cause->worker;
    result.root_cause = cause->root_cause;
  }
  if (cause->own && cause->node == node) return;  // LaunchResult::root()
  result.root_elsewhere = WorkerResult{.worker = cause->worker,
                                       .exit_code = cause->exit_code,
                                       .error_class = cause->error_class,
                                       .training = cause->training,
                                       .step = cause->step};
}

}  // namespace tutti::detail
