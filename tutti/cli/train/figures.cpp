#include "tutti/cli/train/figures.h"

#include <optional>

#include "tutti/comm/engine/engine_counts.h"
#include "tutti/nn/dense_kernel.h"
#include "tutti/ps/client/client.h"
#include "tutti/strategy/membership/detail/worlds.h"

namespace tutti::cli {
namespace {

std::optional<ps::ServerCounts> counts_of(Model& model, const Strategy& strategy) {
  ps::Client* const client = model.optimizer().updater().parts().client;
  if (client == nullptr) return std::nullopt;
  return client->server_counts(Deadline(strategy.world().time_limit));
}

void add_served(OrderedJson& json, const TrainFlags& flags, const ps::ServerCounts& served) {
  const ps::StalenessHistogram& staleness = served.counts.staleness;
  OrderedJson bins = OrderedJson::object();
  for (const auto& [steps, updates] : staleness.bins()) bins[std::to_string(steps)] = updates;
  json["servers"] = detail::served_place().num_servers;
  json["staleness"] = flags.job.served.staleness;
  json["updates"] = served.counts.updates;
  json["dropped"] = served.counts.dropped;
  json["staleness_histogram"] = bins;
  json["staleness_mean"] = staleness.mean();
  json["staleness_max"] = staleness.most();
  json["bytes_pushed"] = served.bytes_pushed;
  json["bytes_pulled"] = served.bytes_pulled;
}

// What was chosen, and what the engines of this process have carried out.
OrderedJson communication_of(const CommunicationFacts& facts) {
  OrderedJson ran = OrderedJson::array();
  for (const EngineCount& one : engine_counts())
    ran.push_back({{"engine", one.engine},
                   {"collective", name_of(one.collective)},
                   {"algorithm", one.algorithm},
                   {"calls", one.calls},
                   {"bytes", one.bytes}});
  return {{"asked", facts.asked}, {"engine", facts.engine},        {"algorithm", facts.algorithm},
          {"why", facts.why},     {"order", name_of(facts.order)}, {"ran", ran}};
}

}  // namespace

Attendance attendance_of(Strategy& strategy) {
  const int local = strategy.world().local;
  return {strategy.world().size / local, strategy.membership().those_here().size / local};
}

OrderedJson figures_of(const TrainFlags& flags, const DataSpec& spec, const Strategy& strategy,
                       Model& model, const History& history, const std::string& sha256,
                       const Attendance& there, int64_t wire_bytes) {
  const std::string metric = "val_" + metric_for(spec).name();
  OrderedJson json = {{"model", flags.job.model},
                      {"strategy", strategy.kind()},
                      {"replicas", strategy.num_replicas_in_sync()},
                      {"reduction_shape", strategy.reduction_shape().to_string()},
                      {"dense_kernel", nn::name_of(nn::dense_kernel())},
                      {"epochs", history.rows.size()},
                      {"global_batch", flags.job.global_batch},
                      {"train_seconds", history.train_seconds},
                      {"images_per_second", history.images_per_second()},
                      {"step_ms_p50", history.step_ms_percentile(0.5)},
                      {"step_ms_p99", history.step_ms_percentile(0.99)},
                      {"input_wait_share", history.input.wait_share()},
                      {"data", data::name_of(spec.kind)},
                      {"train_loss", history.column("train_loss")},
                      {"val_loss", history.last("val_loss")},
                      {metric, history.last(metric)},
                      {"weights_sha256", sha256},
                      {"precision", flags.precision},
                      {"accumulate", flags.accumulate},
                      {"mesh", strategy.world().mesh.to_string()},
                      {"microbatches", flags.microbatches},
                      {"compression", flags.job.compression},
                      {"wire_bytes_per_step", wire_bytes},
                      {"communication", communication_of(strategy.options().communication.chosen)}};
  for (const std::string& name : names_of(flags.measures)) json[name] = history.column(name);
  if (strategy.world().on_devices())
    for (const DeviceQueue& queue : strategy.world().queues)
      json["devices"].push_back(queue.device().str());
  if (const auto served = counts_of(model, strategy)) add_served(json, flags, *served);
  if (!strategy.membership().all_stay()) {
    json["workers"] = there.workers;
    json["workers_finished"] = there.finished;
  }
  return json;
}

}  // namespace tutti::cli
