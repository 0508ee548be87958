#include "tutti/cli/show/hierarchy.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/show/local_members.h"
#include "tutti/cli/show/time_axis.h"
#include "tutti/comm/hier/hier.h"
#include "tutti/comm/shm/shm.h"

namespace tutti::cli {
namespace {

using drawings::Kind;

constexpr int64_t kVectorBytes = int64_t{4} << 20;  ///< at most one chunk of the engine

/// Engines by rank: threads of a host share memory, and each has its rail to the other hosts.
std::vector<std::shared_ptr<Engine>> hier_members(int hosts, int per_host) {
  const int ranks = hosts * per_host;
  const auto across = local_tcp_members(ranks, {.key = "across"});
  std::vector<std::vector<std::shared_ptr<Engine>>> rails;
  for (int s = 0; s < per_host; ++s)
    rails.push_back(local_tcp_members(hosts, {.key = fmt::format("rail {}", s)}));
  std::vector<std::shared_ptr<Engine>> engines;
  for (int host = 0; host < hosts; ++host) {
    const auto inside = make_shm_threads(per_host);
    for (int local = 0; local < per_host; ++local) {
      HierParts parts{.rank = host * per_host + local,
                      .replicas_per_host = std::vector<int>(static_cast<size_t>(hosts), per_host),
                      .inside = inside[static_cast<size_t>(local)],
                      .rails = {},
                      .across = across[engines.size()],
                      .regroup = {}};
      parts.rails.resize(static_cast<size_t>(per_host));
      parts.rails[static_cast<size_t>(local)] =
          rails[static_cast<size_t>(local)][static_cast<size_t>(host)];
      engines.push_back(make_hier(std::move(parts)));
    }
  }
  return engines;
}

/// What went between two hosts.
struct Crossing {
  int from = 0, to = 0;  ///< ranks
  int64_t bytes = 0;
  double sent_us = 0, awaited_us = 0, received_us = 0;
  double waited_us() const {
    return std::clamp(sent_us - awaited_us, 0.0, received_us - awaited_us);
  }
};

/// The rank of host `host` that carries what goes over rail "rail 1".
int rank_on_rail(const HierarchyTrace& trace, const std::string& rail, int64_t host) {
  return static_cast<int>(host) * trace.ranks_per_host + std::stoi(rail.substr(5));
}

std::vector<Crossing> crossings_of(const HierarchyTrace& trace) {
  // Of a rail, receiver's and sender's host: which operation, and its round. What one sends another
  // in a round comes in that order; where it lies there ("begin") is another place maybe.
  using Round = std::tuple<std::string, int64_t, int64_t, int64_t, int64_t>;
  const auto round_of = [](const Recorded& event, const char* to, const char* from) {
    return Round{event.text("group"), event.number(to), event.number(from), event.number("number"),
                 event.number("round")};
  };
  std::map<Round, std::deque<const Recorded*>> sent;
  std::vector<Crossing> all;
  for (const Recorded& event : trace.events)
    if (event.name == "tcp.sent" && event.text("group").starts_with("rail "))
      sent[round_of(event, "peer", "rank")].push_back(&event);
  for (const Recorded& event : trace.events) {
    if (event.name != "tcp.received" || !event.text("group").starts_with("rail ")) continue;
    const std::string& rail = event.text("group");
    auto& pieces = sent[round_of(event, "rank", "peer")];
    if (pieces.empty() || pieces.front()->number("bytes") != event.number("bytes"))
      throw Error("show hierarchy: bytes were received that nobody sent; please report this");
    all.push_back({.from = rank_on_rail(trace, rail, event.number("peer")),
                   .to = rank_on_rail(trace, rail, event.number("rank")),
                   .bytes = event.number("bytes"),
                   .sent_us = pieces.front()->begin_us(),
                   .awaited_us = event.begin_us(),
                   .received_us = event.when_us});
    pieces.pop_front();
  }
  return all;
}

struct HierPhaseSeen {
  int rank = 0;
  Kind kind = Kind::first;
  double begin_us = 0, end_us = 0;
};

std::vector<HierPhaseSeen> phases_of(const HierarchyTrace& trace) {
  const std::map<std::string, Kind> kinds = {{"hier.reduced_inside", Kind::first},
                                             {"hier.between", Kind::second},
                                             {"hier.gathered_inside", Kind::third}};
  std::vector<HierPhaseSeen> all;
  for (const Recorded& event : trace.events)
    if (const auto kind = kinds.find(event.name); kind != kinds.end())
      all.push_back({.rank = static_cast<int>(event.number("rank")),
                     .kind = kind->second,
                     .begin_us = event.begin_us(),
                     .end_us = event.when_us});
  return all;
}

const char* name_of_phase(Kind kind) {
  return kind == Kind::first    ? "adds up inside its host"
         : kind == Kind::second ? "sums with the other hosts"
                                : "gets the rest from inside its host";
}

drawings::Drawing drawing_of_hierarchy(const HierarchyTrace& trace,
                                       const std::vector<Crossing>& crossings,
                                       const std::vector<HierPhaseSeen>& phases, double first,
                                       double end_us) {
  drawings::Drawing drawing;
  drawing.title =
      fmt::format("All-reduce over {} hosts of {} ranks", trace.hosts, trace.ranks_per_host);
  for (int r = 0; r < trace.hosts * trace.ranks_per_host; ++r)
    drawing.lanes.push_back(fmt::format("rank {}", r));
  drawing.ticks = clock_ticks(end_us);
  for (const HierPhaseSeen& phase : phases)
    drawing.bars.push_back({.lane = phase.rank,
                            .begin = phase.begin_us - first,
                            .end = phase.end_us - first,
                            .kind = phase.kind,
                            .words = fmt::format("{}, {:.2f} ms", name_of_phase(phase.kind),
                                                 (phase.end_us - phase.begin_us) / 1000)});
  for (const Crossing& one : crossings) {
    drawing.arrows.push_back({.from = one.from,
                              .to = one.to,
                              .begin = one.sent_us - first,
                              .end = one.received_us - first,
                              .kind = Kind::second,
                              .words = fmt::format("{} bytes between hosts", one.bytes)});
    if (one.waited_us() >= 20)
      drawing.bars.push_back(
          {.lane = one.to,
           .begin = one.awaited_us - first,
           .end = one.awaited_us + one.waited_us() - first,
           .kind = Kind::wait,
           .words = fmt::format("waited {:.2f} ms for rank {}", one.waited_us() / 1000, one.from)});
  }
  drawing.legend = {{Kind::first, "adds up inside its host: shared memory"},
                    {Kind::second, "sums its slice with the other hosts; arrows: what crosses"},
                    {Kind::third, "gets the other slices from inside its host"},
                    {Kind::wait, "waits: the other host's rank has not begun to send"}};
  return drawing;
}

}  // namespace

HierarchyTrace run_hierarchy(int hosts, int ranks_per_host, int64_t bytes) {
  HierarchyTrace trace{
      .hosts = hosts, .ranks_per_host = ranks_per_host, .bytes = bytes, .events = {}};
  const auto engines = hier_members(hosts, ranks_per_host);
  auto [events, correct] = record_all_reduce(engines, bytes, {"tcp.", "hier."});
  trace.events = std::move(events);
  trace.correct = correct;
  return trace;
}

Shown hierarchy_shown(const HierarchyTrace& trace) {
  const auto crossings = crossings_of(trace);
  const auto phases = phases_of(trace);
  const int ranks = trace.hosts * trace.ranks_per_host;
  if (std::ssize(phases) != 3 * ranks)
    throw Error(fmt::format("show hierarchy: {} phases, expected {}; please report this",
                            phases.size(), 3 * ranks));
  double first = phases[0].begin_us, last = 0;
  for (const HierPhaseSeen& phase : phases) {
    first = std::min(first, phase.begin_us);
    last = std::max(last, phase.end_us);
  }
  std::vector<int64_t> left(static_cast<size_t>(trace.hosts));
  OrderedJson messages = OrderedJson::array(), seen = OrderedJson::array();
  for (const Crossing& one : crossings) {
    left[static_cast<size_t>(one.from / trace.ranks_per_host)] += one.bytes;
    messages.push_back({{"from", one.from},
                        {"to", one.to},
                        {"bytes", one.bytes},
                        {"sent_us", one.sent_us - first},
                        {"received_us", one.received_us - first},
                        {"waited_us", one.waited_us()}});
  }
  for (const HierPhaseSeen& phase : phases)
    seen.push_back({{"rank", phase.rank},
                    {"what", name_of_phase(phase.kind)},
                    {"begin_us", phase.begin_us - first},
                    {"end_us", phase.end_us - first}});
  const double formula = 2.0 * (trace.hosts - 1) / trace.hosts * static_cast<double>(trace.bytes);
  Shown shown{.drawing = drawing_of_hierarchy(trace, crossings, phases, first, last - first),
              .figures = {{"show", "hierarchy"},
                          {"hosts", trace.hosts},
                          {"ranks_per_host", trace.ranks_per_host},
                          {"bytes", trace.bytes},
                          {"left_host_bytes", left},
                          {"formula_bytes", formula},
                          {"us", last - first},
                          {"correct", trace.correct},
                          {"messages", messages},
                          {"phases", seen}},
              .lines = {}};
  for (int host = 0; host < trace.hosts; ++host)
    shown.lines.push_back(
        fmt::format("ranks {} to {} are host {}, which {} bytes left", host * trace.ranks_per_host,
                    (host + 1) * trace.ranks_per_host - 1, host, left[static_cast<size_t>(host)]));
  shown.lines.push_back(fmt::format("2(H-1)/H S = {:.0f} bytes, with H = {} hosts and S = {} bytes",
                                    formula, trace.hosts, trace.bytes));
  shown.lines.push_back(fmt::format("{:.2f} ms in all, on this machine; sums {}",
                                    (last - first) / 1000, trace.correct ? "right" : "WRONG"));
  for (const std::string& line : shown.lines) shown.drawing.notes.push_back(line + ".");
  return shown;
}

void add_show_hierarchy(Command& show) {
  struct Flags {
    ShowFlags show{.svg = "hierarchy.svg"};
    int64_t hosts = 2, ranks = 2;
  };
  auto flags = std::make_shared<Flags>();
  Command& command = show.command(
      "hierarchy", "All-reduce of several hosts: first inside each, then between them");
  command.add("--hosts", "H", &flags->hosts, whole_number(1, int64_t{1} << 31),
              "Hosts, groups of threads here, 2 to 6");
  command.add("--ranks-per-host", "L", &flags->ranks, whole_number(1, int64_t{1} << 31),
              "Ranks of each, 2 to 6; 12 in all");
  add_show_flags(command, flags->show);
  command.footer = "Example:\n  tutti show hierarchy --hosts 2 --ranks-per-host 2";
  command.action = [flags] {
    require_on_screen("--hosts", flags->hosts, 2, 6, "--hosts 2, or `tutti plan` for many");
    require_on_screen("--ranks-per-host", flags->ranks, 2, 12 / flags->hosts,
                      fmt::format("--ranks-per-host 2 beside {} hosts", flags->hosts));
    require_outputs(flags->show);
    const int hosts = static_cast<int>(flags->hosts), ranks = static_cast<int>(flags->ranks);
    const int64_t unit = int64_t{64} * ranks * hosts;
    return present(hierarchy_shown(run_hierarchy(hosts, ranks, kVectorBytes / unit * unit)),
                   flags->show);
  };
}

}  // namespace tutti::cli
