#include "tutti/strategy/membership/detail/agreement.h"

#include <memory>
#include <numeric>
#include <vector>

#include "tutti/base/agreed_lines.h"
#include "tutti/base/error.h"
#include "tutti/cluster/join/join.h"
#include "tutti/comm/engine/engine_meeting.h"

namespace tutti::detail {
namespace {

// Each function here names all fields of what it is about: a new one does not compile until it is
// named too, and then stands among the lines, or beside the reason why it does not.

void add(AgreedLines& lines, const Compression& compression) {
  const auto& [kind, ratio, rank, start_step, min_elements, seed] = compression;
  lines.add("compression", to_string(compression));
  if (!compression.on()) return;
  lines.add("compression, ratio", ratio);
  lines.add("compression, rank", rank);
  lines.add("compression, start_step", start_step);
  lines.add("compression, min_elements", min_elements);
  if (kind == Compression::Kind::power_sgd) lines.add("compression, seed", seed);
}

void add(AgreedLines& lines, const ps::PlacementOptions& placement) {
  // num_servers and weights are the launcher's; what follows from all of it servers compare too.
  const auto& [num_servers, how, partitioner, rules, weights] = placement;
  lines.add("placement", how == ps::PlacementOptions::How::greedy ? "greedy" : "round_robin");
  lines.add("partition", partitioner.words());
  for (const auto& [pattern, server] : rules)
    lines.add("placement of " + pattern, fmt::format("server {}", server));
}

void add(AgreedLines& lines, const ServedOptions& served) {
  const auto& [staleness, drop_slowest, on_lost_worker, scale_by_staleness, delay_compensation,
               stop_if_not_finite, host_sums, placement] = served;
  lines.add("staleness", staleness.text());
  lines.add("drop_slowest", drop_slowest);
  lines.add("on_lost_worker", ps::name_of(on_lost_worker));
  lines.add("scale_by_staleness", scale_by_staleness);
  lines.add("delay_compensation", delay_compensation);
  lines.add("stop_if_not_finite", stop_if_not_finite);
  lines.add("host_sums", host_sums);
  add(lines, placement);
}

void add(AgreedLines& lines, const BySpeed& by) {
  // The record is the chief's alone.
  const auto& [first_look, rarest_look, least_gain, most_error, record] = by;
  lines.add("shares", "by speed");
  lines.add("shares, first_look", first_look);
  lines.add("shares, rarest_look", rarest_look);
  lines.add("shares, least_gain", least_gain);
  lines.add("shares, most_error", most_error);
}

}  // namespace

static std::string communication_words(const StrategyOptions& options) {
  // Each worker's own: timeout, and what it became. Of what is not asked for the engine decides,
  // for all alike.
  const auto& [implementation, bytes_per_pack, timeout, order, chosen] = options.communication;
  AgreedLines lines;
  lines.add("communication", implementation);
  lines.add("communication, order", order ? name_of(*order) : "as it has");
  lines.add("communication, bytes_per_pack", bytes_per_pack);
  return lines.text();
}

static void add(AgreedLines& lines, const std::optional<LocalUpdates>& local) {
  if (!local) return lines.add("local steps", "none: replicas meet in each update");
  const auto& [every, outer, start_step] = *local;
  const auto& [learning_rate, momentum, nesterov] = outer;
  lines.add("local steps", every);
  lines.add("local steps, start", start_step);
  lines.add("local steps, outer learning rate", learning_rate);
  lines.add("local steps, outer momentum", momentum);
  lines.add("local steps, outer nesterov", nesterov);
}

std::string strategy_words(const StrategyOptions& options, int replicas) {
  // Each worker's own, of which no bit depends: time_limit, memory_limit_mib, pin and the flags
  // that were typed; who is alone has nobody to agree with. Compared elsewhere: the kind of device,
  // where "auto" must be looked up (worlds.cpp); how GPUs add up (RankOnGpu::sums); communication,
  // before there is any (communication_words); the table, by the engine that goes by it; shape,
  // where it is chosen, with one_device alone.
  const auto& [kind, number, reduction_shape, threads, time_limit, device, plugin, memory_limit_mib,
               deterministic, step_graph, pin, seed, reduction, sum_order, engine, communication,
               make_reduction, compression, local, table, served, piece_bytes, mesh, shard,
               shard_bucket_bytes, tensor_blocks, shares, by_speed, shares_file, alone, typed] =
      options;
  AgreedLines lines;
  lines.add("strategy", kind);
  lines.add("replicas", replicas);
  lines.add("threads a replica", threads == 0 ? "as many as fit" : fmt::format("{}", threads));
  lines.add("plugin", plugin.empty() ? "none" : plugin);
  lines.add("deterministic", deterministic);
  lines.add("step_graph", step_graph);
  lines.add("seed", seed);
  lines.add("reduction", reduction);
  lines.add("reduction of one's own", make_reduction ? "yes" : "no");
  add(lines, compression);
  add(lines, local);
  lines.add("mesh", mesh.empty() ? "none" : mesh);
  lines.add("shard", shard.empty() ? "nothing" : shard);
  lines.add("shard_bucket_bytes", shard_bucket_bytes);
  lines.add("tensor_blocks", tensor_blocks);
  if (by_speed)
    add(lines, *by_speed);
  else if (!shares_file.empty())
    lines.add("shares of a file", shares_of_file(options, replicas).to_json(replicas));
  else
    lines.add("shares", shares.empty() ? "equal" : fmt::format("{}", fmt::join(shares, ", ")));
  lines.add("piece_bytes", piece_bytes);
  if (options.uses_servers()) add(lines, served);
  return lines.text();
}

void require_same_lines(std::string_view operation, const std::map<int, std::string>& by_worker) {
  const auto& [first, expected] = *by_worker.begin();
  for (const auto& [worker, text] : by_worker)
    if (const auto lines = first_difference(expected, text))
      throw Mismatch(
          fmt::format("{0}: worker {3} was asked for something else than worker {1}\n"
                      "  worker {1} has {2}\n  worker {3} has {4}\n"
                      "  every worker makes the same calls, with the same options and data",
                      operation, first, lines->first, worker, lines->other));
}

void require_same_communication(const StrategyOptions& options) {
  const auto workers = std::make_shared<Group>(join(options.time_limit));
  std::vector<int> all(static_cast<size_t>(workers->size()));
  std::iota(all.begin(), all.end(), 0);
  EngineMeeting meeting({workers, &workers->engine()}, all);
  const auto texts =
      meeting.exchange("communication", communication_words(options), Deadline(options.time_limit));
  std::map<int, std::string> by_worker;
  for (size_t r = 0; r < texts.size(); ++r) by_worker.emplace(static_cast<int>(r), texts[r]);
  require_same_lines("strategy", by_worker);
}

}  // namespace tutti::detail
