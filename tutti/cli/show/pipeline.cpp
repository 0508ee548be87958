#include "tutti/cli/show/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/show/time_axis.h"
#include "tutti/mesh/check.h"
#include "tutti/mesh/simulate.h"

namespace tutti::cli {
namespace {

using drawings::Kind;

constexpr int64_t kMostMicrobatches = 32;

/// What a rank did: an action of its schedule, or a wait for what an action needs.
struct Seen {
  int rank = 0, stage = 0, microbatch = 0;
  std::optional<mesh::Kind> kind{};  ///< none: it waited
  double begin_us = 0, end_us = 0;
  double cpu_us = 0;  ///< of that time on a core
};

std::optional<mesh::Kind> kind_of_event(const Recorded& event) {
  if (event.name == "pipeline.F") return mesh::Kind::forward;
  if (event.name == "pipeline.B") return mesh::Kind::backward;
  if (event.name == "pipeline.W") return mesh::Kind::weight;
  return std::nullopt;
}

std::vector<Seen> seen_in(const PipelineTrace& trace) {
  double first = std::numeric_limits<double>::max();
  for (const Recorded& event : trace.events) first = std::min(first, event.begin_us());
  std::vector<Seen> all;
  for (const Recorded& event : trace.events) {
    const int stage = static_cast<int>(event.number("stage"));
    all.push_back({.rank = trace.schedule.rank_of(stage),
                   .stage = stage,
                   .microbatch = static_cast<int>(event.number("microbatch")),
                   .kind = kind_of_event(event),
                   .begin_us = event.begin_us() - first,
                   .end_us = event.when_us - first,
                   .cpu_us = std::clamp(event.real("cpu_us"), 0.0, event.real("us"))});
  }
  return all;
}

/// "F0,F1,B0": what a rank computed, in its order.
std::vector<mesh::Action> done_by(const PipelineTrace& trace, const std::vector<Seen>& seen,
                                  int rank) {
  std::vector<mesh::Action> actions;
  for (const Seen& one : seen)
    if (one.rank == rank && one.kind)
      actions.push_back({*one.kind, trace.schedule.chunk_of(one.stage), one.microbatch});
  return actions;
}

const Seen* find(const std::vector<Seen>& seen, mesh::Kind kind, int stage, int microbatch) {
  const auto found = std::ranges::find_if(seen, [&](const Seen& one) {
    return one.kind == kind && one.stage == stage && one.microbatch == microbatch;
  });
  return found == seen.end() ? nullptr : &*found;
}

Kind colour_of_action(mesh::Kind kind) {
  return kind == mesh::Kind::forward    ? Kind::first
         : kind == mesh::Kind::backward ? Kind::second
                                        : Kind::third;
}

/// What goes from a rank to another once a stage has computed it, until that begins with it.
std::vector<drawings::Arrow> arrows_of_pipeline(const PipelineTrace& trace,
                                                const std::vector<Seen>& seen) {
  std::vector<drawings::Arrow> arrows;
  for (const Seen& one : seen) {
    if (one.kind != mesh::Kind::forward && one.kind != mesh::Kind::backward) continue;
    const bool forward = one.kind == mesh::Kind::forward;
    const int next = one.stage + (forward ? 1 : -1);
    if (next < 0 || next >= trace.schedule.stages()) continue;
    const Seen* const user = find(seen, *one.kind, next, one.microbatch);
    if (user == nullptr || user->rank == one.rank) continue;
    arrows.push_back({.from = one.rank,
                      .to = user->rank,
                      .begin = one.end_us,
                      .end = std::max(one.end_us, user->begin_us),
                      .kind = colour_of_action(*one.kind),
                      .words = fmt::format("{} of microbatch {}, used {:.0f} us later",
                                           forward ? "output" : "gradient", one.microbatch,
                                           std::max(0.0, user->begin_us - one.end_us))});
  }
  return arrows;
}

drawings::Drawing drawing_of_pipeline(const PipelineTrace& trace, const std::vector<Seen>& seen,
                                      double end_us) {
  drawings::Drawing drawing;
  const int ranks = trace.schedule.ranks();
  drawing.title = fmt::format("Pipeline {}: {} ranks, {} microbatches", trace.schedule.name, ranks,
                              trace.schedule.microbatches);
  for (int r = 0; r < ranks; ++r) drawing.lanes.push_back(fmt::format("rank {}", r));
  drawing.ticks = clock_ticks(end_us);
  for (const Seen& one : seen) {
    const double us = one.end_us - one.begin_us;
    if (!one.kind && us < 20) continue;
    const std::string what =
        one.kind ? fmt::format("{}{}", mesh::letter_of(*one.kind), one.microbatch) : "";
    drawing.bars.push_back(
        {.lane = one.rank,
         .begin = one.begin_us,
         .end = one.end_us,
         .kind = one.kind ? colour_of_action(*one.kind) : Kind::wait,
         .label = what,
         .words = one.kind ? fmt::format("{} of stage {}, {:.2f} ms, of that {:.2f} on a core",
                                         what, one.stage, us / 1000, one.cpu_us / 1000)
                           : fmt::format("waited {:.2f} ms for microbatch {}", us / 1000,
                                         one.microbatch)});
  }
  drawing.arrows = arrows_of_pipeline(trace, seen);
  drawing.legend = {{Kind::first, "F: forward of a microbatch (its number), with waits for a core"},
                    {Kind::second, "B: backward"},
                    {Kind::wait, "waits for another rank"}};
  if (trace.schedule.split)
    drawing.legend.insert(drawing.legend.begin() + 2,
                          {Kind::third, "W: gradients of weights, put off"});
  return drawing;
}

}  // namespace

Shown pipeline_shown(const PipelineTrace& trace) {
  const std::vector<Seen> seen = seen_in(trace);
  double end_us = 0;
  for (const Seen& one : seen) end_us = std::max(end_us, one.end_us);
  const int ranks = trace.schedule.ranks();
  const auto of_ranks = std::vector<double>(static_cast<size_t>(ranks));
  std::vector<double> busy = of_ranks, waited = of_ranks, without_core = of_ranks;
  OrderedJson orders = OrderedJson::array(), actions = OrderedJson::array();
  for (const Seen& one : seen) {
    const auto rank = static_cast<size_t>(one.rank);
    const double us = one.end_us - one.begin_us;
    (one.kind ? busy : waited)[rank] += one.kind ? one.cpu_us : us;
    if (one.kind) without_core[rank] += us - one.cpu_us;
    actions.push_back({{"rank", one.rank},
                       {"stage", one.stage},
                       {"microbatch", one.microbatch},
                       {"what", one.kind ? std::string(1, mesh::letter_of(*one.kind)) : "waited"},
                       {"begin_us", one.begin_us},
                       {"end_us", one.end_us},
                       {"cpu_us", one.cpu_us}});
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const auto done = done_by(trace, seen, rank);
    if (done != trace.schedule.actions[static_cast<size_t>(rank)])
      throw Error(fmt::format("show pipeline: rank {} did not do what {} says; please report this",
                              rank, trace.schedule.name));
    std::string order;
    for (const mesh::Action& action : done)
      order += fmt::format("{}{}{}", order.empty() ? "" : ",", mesh::letter_of(action.kind),
                           action.microbatch);
    orders.push_back(order);
  }
  double all_busy = 0;
  for (const double one : busy) all_busy += one;
  const double idle = 1 - all_busy / (ranks * end_us);
  const double by_schedule =
      mesh::simulate(trace.schedule, {.stages = {{.forward = 1, .backward = 1, .weight = 1}}})
          .bubble();
  Shown shown{.drawing = drawing_of_pipeline(trace, seen, end_us),
              .figures = {{"show", "pipeline"},
                          {"schedule", trace.schedule.name},
                          {"ranks", ranks},
                          {"microbatches", trace.schedule.microbatches},
                          {"border_bytes", trace.border_bytes},
                          {"us", end_us},
                          {"busy_us", busy},
                          {"waited_us", waited},
                          {"without_core_us", without_core},
                          {"idle", idle},
                          {"idle_by_schedule", by_schedule},
                          {"order", orders},
                          {"actions", actions}},
              .lines = {}};
  for (int rank = 0; rank < ranks; ++rank)
    shown.lines.push_back(fmt::format(
        "rank {} computed {:.2f}, waited {:.2f} for others and {:.2f} for a core, of {:.2f} ms",
        rank, busy[static_cast<size_t>(rank)] / 1000, waited[static_cast<size_t>(rank)] / 1000,
        without_core[static_cast<size_t>(rank)] / 1000, end_us / 1000));
  shown.lines.push_back(
      fmt::format("idle: {:.0f} % here, waits for a core and all; {:.0f} % by the schedule, where "
                  "each rank has a core and backward takes twice as long as forward",
                  100 * idle, 100 * by_schedule));
  for (const std::string& line : shown.lines) shown.drawing.notes.push_back(line + ".");
  return shown;
}

void add_show_pipeline(Command& show) {
  struct Flags {
    ShowFlags show{.svg = "pipeline.svg"};
    int64_t ranks = 2, microbatches = 4;
    std::string schedule = "1f1b";
  };
  auto flags = std::make_shared<Flags>();
  Command& command = show.command("pipeline", "A step over stages: forwards, backwards, and waits");
  command
      .add("--ranks", "N", &flags->ranks, whole_number(1, int64_t{1} << 31),
           "Ranks with stages, threads here, 2 to 12")
      .short_name = "-n";
  command.add("--microbatches", "M", &flags->microbatches, whole_number(1, int64_t{1} << 31),
              "Parts of the batch, 1 to 32");
  command.add("--schedule", "NAME", &flags->schedule, one_of("schedule", mesh::schedule_names()),
              "gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe-v");
  add_show_flags(command, flags->show);
  command.footer = "Example:\n  tutti show pipeline -n 4 --microbatches 8 --schedule zb-h1";
  command.action = [flags] {
    require_on_screen("-n", flags->ranks, 2, drawings::kMostLanes - 1,
                      "-n 4, or `tutti plan pipeline --ranks N` for the schedule alone");
    require_on_screen("--microbatches", flags->microbatches, 1, kMostMicrobatches,
                      "--microbatches 8, or `tutti plan pipeline` for the schedule alone");
    const mesh::Schedule schedule = mesh::schedule_by_name(
        flags->schedule, {.ranks = static_cast<int>(flags->ranks),
                          .microbatches = static_cast<int>(flags->microbatches)});
    mesh::check(schedule);
    require_outputs(flags->show);
    return present(pipeline_shown(run_pipeline(schedule)), flags->show);
  };
}

}  // namespace tutti::cli
