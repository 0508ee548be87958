#include "tutti/cli/show/ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/show/local_members.h"
#include "tutti/comm/schedule/communication.h"

namespace tutti::cli {
namespace {

using drawings::Kind;

constexpr int64_t kMostBytes = int64_t{1} << 30;

/// One rank sends a piece to the next and the next takes it, in one step of the ring.
struct Hop {
  int step = 0;  ///< from 0 on
  int from = 0, to = 0;
  int piece = 0;
  int64_t bytes = 0;
  double sent_us = 0;      ///< when the sender began
  double awaited_us = 0;   ///< from when on the receiver wanted it
  double received_us = 0;  ///< when the receiver had all of it, added up or stored
  /// How long the receiver had nothing to take, since the sender had not begun.
  double waited_us() const {
    return std::clamp(sent_us - awaited_us, 0.0, received_us - awaited_us);
  }
};

/// By step, then sender.
std::vector<Hop> hops_of(const RingTrace& trace) {
  std::map<std::pair<int64_t, int64_t>, const Recorded*> sent;
  for (const Recorded& event : trace.events)
    if (event.name == "tcp.sent") sent[{event.number("round"), event.number("rank")}] = &event;
  std::vector<Hop> hops;
  for (const Recorded& event : trace.events) {
    if (event.name != "tcp.received") continue;
    const auto from = sent.find({event.number("round"), event.number("peer")});
    if (from == sent.end() || from->second->number("peer") != event.number("rank") ||
        from->second->number("begin") != event.number("begin"))
      throw Error("show ring: a piece was received that nobody sent; please report this");
    hops.push_back(
        {.step = static_cast<int>(event.number("round")),
         .from = static_cast<int>(event.number("peer")),
         .to = static_cast<int>(event.number("rank")),
         .piece = static_cast<int>(event.number("begin") * 4 * trace.ranks / trace.bytes),
         .bytes = event.number("bytes"),
         .sent_us = from->second->begin_us(),
         .awaited_us = event.begin_us(),
         .received_us = event.when_us});
  }
  std::ranges::sort(hops, {}, [](const Hop& hop) { return std::pair(hop.step, hop.from); });
  return hops;
}

/// Steps are drawn one below the other, each as high as the others: ranks run through them each at
/// its own time.
struct Stretched {
  struct Step {
    double begin = 0, end = 0;
  };
  std::vector<Step> steps;

  explicit Stretched(const std::vector<Hop>& hops) {
    for (const Hop& hop : hops) {
      const auto number = static_cast<size_t>(hop.step);
      if (number >= steps.size()) steps.resize(number + 1, {hop.awaited_us, hop.received_us});
      Step& step = steps[number];
      step.begin = std::min({step.begin, hop.awaited_us, hop.sent_us});
      step.end = std::max(step.end, hop.received_us);
    }
  }
  double at(const Hop& hop, double us) const {
    const Step& step = steps[static_cast<size_t>(hop.step)];
    return hop.step + std::clamp((us - step.begin) / (step.end - step.begin), 0.0, 1.0);
  }
};

const char* phase_of(const Hop& hop, int ranks) {
  return hop.step < ranks - 1 ? "scatter_reduce" : "all_gather";
}

drawings::Drawing drawing_of(const RingTrace& trace, const std::vector<Hop>& hops) {
  const int n = trace.ranks;
  const Stretched stretched(hops);
  drawings::Drawing drawing;
  drawing.title = fmt::format("All-reduce round a ring of {}: who sent which piece", n);
  drawing.closes_ring = true;
  for (int r = 0; r <= n; ++r) drawing.lanes.push_back(fmt::format("rank {}", r % n));
  for (int step = 0; step < 2 * (n - 1); ++step)
    drawing.ticks.push_back({static_cast<double>(step + 1), fmt::format("step {}", step + 1)});
  for (const Hop& hop : hops) {
    const Kind kind = hop.step < n - 1 ? Kind::first : Kind::second;
    const double begin = stretched.at(hop, hop.awaited_us),
                 end = stretched.at(hop, hop.received_us);
    const double came = stretched.at(hop, hop.awaited_us + hop.waited_us());
    const std::string what = fmt::format("piece {}", hop.piece);
    drawing.arrows.push_back(
        {.from = hop.from,
         .to = hop.from + 1,
         .begin = stretched.at(hop, hop.sent_us),
         .end = end,
         .kind = kind,
         .label = std::to_string(hop.piece),
         .words = fmt::format("{}, {}", what, kind == Kind::first ? "added there" : "finished")});
    if (hop.waited_us() >= 1)
      drawing.bars.push_back({.lane = hop.to,
                              .begin = begin,
                              .end = came,
                              .kind = Kind::wait,
                              .words = fmt::format("waited {:.0f} us for {} of rank {}",
                                                   hop.waited_us(), what, hop.from)});
    drawing.bars.push_back(
        {.lane = hop.to,
         .begin = came,
         .end = end,
         .kind = kind,
         .label = std::to_string(hop.piece),
         .words = fmt::format("{} came in {:.0f} us", what,
                              hop.received_us - hop.awaited_us - hop.waited_us())});
  }
  drawing.legend = {
      {Kind::first, fmt::format("steps 1 to {}, scatter-reduce: the piece is added to "
                                "that of the rank to which it comes",
                                n - 1)},
      {Kind::second,
       fmt::format("steps {} to {}, all-gather: finished sums go round", n, 2 * (n - 1))},
      {Kind::wait, "waited: the rank before had not begun to send"}};
  return drawing;
}

OrderedJson message_of_hop(const Hop& hop, int ranks) {
  return {{"step", hop.step + 1},
          {"phase", phase_of(hop, ranks)},
          {"from", hop.from},
          {"to", hop.to},
          {"piece", hop.piece},
          {"bytes", hop.bytes},
          {"sent_us", hop.sent_us},
          {"received_us", hop.received_us},
          {"waited_us", hop.waited_us()}};
}

}  // namespace

RingTrace run_ring(int ranks, int64_t bytes) {
  const int64_t unit = int64_t{4} * ranks;
  RingTrace trace{.ranks = ranks, .bytes = std::max(unit, (bytes + unit - 1) / unit * unit)};
  const CommunicationPlan plan =
      plan_of({.implementation = "ring", .order = Order::any}, built_in_table());
  const auto engines =
      local_tcp_members(ranks, {.order = plan.order, .table = plan.table, .key = "ring"});
  auto [events, correct] = record_all_reduce(engines, trace.bytes, {"tcp."});
  trace.events = std::move(events);
  trace.correct = correct;
  return trace;
}

Shown ring_shown(const RingTrace& trace) {
  const int n = trace.ranks;
  const std::vector<Hop> hops = hops_of(trace);
  if (std::ssize(hops) != 2 * n * (n - 1))
    throw Error(fmt::format("show ring: {} pieces were received, expected {}; please report this",
                            hops.size(), 2 * n * (n - 1)));
  std::vector<int64_t> sent(static_cast<size_t>(n));
  std::vector<double> waited(static_cast<size_t>(n));
  OrderedJson messages = OrderedJson::array();
  double first = hops[0].sent_us, last = 0;
  for (const Hop& hop : hops) {
    sent[static_cast<size_t>(hop.from)] += hop.bytes;
    waited[static_cast<size_t>(hop.to)] += hop.waited_us();
    first = std::min({first, hop.sent_us, hop.awaited_us});
    last = std::max(last, hop.received_us);
    messages.push_back(message_of_hop(hop, n));
  }
  const double formula = 2.0 * (n - 1) / n * static_cast<double>(trace.bytes);
  Shown shown{.drawing = drawing_of(trace, hops), .figures = {}, .lines = {}};
  shown.figures = {{"show", "ring"},
                   {"ranks", n},
                   {"bytes", trace.bytes},
                   {"pieces", n},
                   {"scatter_reduce_steps", n - 1},
                   {"all_gather_steps", n - 1},
                   {"sent_bytes", sent},
                   {"formula_bytes", formula},
                   {"waited_us", waited},
                   {"us", last - first},
                   {"correct", trace.correct},
                   {"messages", messages}};
  const auto [least, most] = std::ranges::minmax(sent);
  const std::string bytes = fmt::format(
      "each rank sent {} bytes; 2(n-1)/n S = {:.0f} bytes, with n = {} ranks and S = {} bytes",
      least == most ? std::to_string(most) : fmt::format("{} to {}", least, most), formula, n,
      trace.bytes);
  const auto slowest = std::ranges::max_element(waited) - waited.begin();
  const std::string waits = fmt::format(
      "{:.0f} us in all, on this machine; rank {} waited longest, {:.0f} us; sums {}", last - first,
      slowest, waited[static_cast<size_t>(slowest)], trace.correct ? "right" : "WRONG");
  shown.lines = {bytes, waits};
  shown.drawing.notes = {bytes + ".", waits + ".",
                         "Each step is drawn as high as the others; ranks go through them each at "
                         "its own time."};
  return shown;
}

void add_show_ring(Command& show) {
  struct Flags {
    ShowFlags show{.svg = "ring.svg"};
    int64_t ranks = 5;
    std::string bytes = "4M";
  };
  auto flags = std::make_shared<Flags>();
  Command& command = show.command("ring", "All-reduce round a ring: which piece goes where when");
  command
      .add("--ranks", "N", &flags->ranks, whole_number(1, int64_t{1} << 31),
           "Ranks, threads here, 2 to 12")
      .short_name = "-n";
  command.add("--bytes", "B", &flags->bytes, "Of each rank's vector of float32: 8, 1K, 64M");
  add_show_flags(command, flags->show);
  command.footer = "Example:\n  tutti show ring -n 5";
  command.action = [flags] {
    require_on_screen("-n", flags->ranks, 2, kMostRingRanks,
                      "-n 5 here, or `tutti bench all-reduce --engine tcp --ranks N` for figures");
    const auto sizes = parse_sizes("--bytes", flags->bytes);
    if (sizes.size() != 1 || sizes[0] < 1 || sizes[0] > kMostBytes)
      throw UsageError(
          fmt::format("--bytes: got {}, expected one size from 1 to 1G; try 4M", flags->bytes));
    require_outputs(flags->show);
    const Shown shown = ring_shown(run_ring(static_cast<int>(flags->ranks), sizes[0]));
    return present(shown, flags->show);
  };
}

}  // namespace tutti::cli
