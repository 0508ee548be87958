// tutti show scaling: speed by number of replicas, with the ideal line; measured as by bench scale.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/show/speed.h"

namespace tutti::cli {
namespace {

constexpr size_t kMostCounts = 12;

}  // namespace

Shown scaling_shown(const ScaleFlags& flags, const std::vector<ScaleRow>& rows) {
  const drawings::Speeds speeds = speeds_of(flags, rows);
  OrderedJson json = OrderedJson::array();
  Shown shown{.drawing = {.title = speeds.title},
              .svg = drawings::svg(speeds),
              .frames = {},
              .figures = {},
              .lines = {}};
  drawings::Speeds so_far = speeds;
  so_far.speeds.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const ScaleRow& row = rows[i];
    so_far.speeds.push_back(speeds.speeds[i]);
    shown.frames.push_back(drawings::text(so_far));
    const double ideal = drawings::ideal_of(speeds, row.replicas);
    json.push_back({{"replicas", row.replicas},
                    {"images_per_second", row.images_per_second},
                    {"ideal_images_per_second", ideal},
                    {"limit_images_per_second", row.limit},
                    {"speedup", row.images_per_second / rows[0].images_per_second},
                    {"efficiency", row.images_per_second / ideal},
                    {"share_of_limit", row.share_of_limit}});
    shown.lines.push_back(
        fmt::format("{} replica{}: {:.0f} images/s, {:.0f} % of the ideal, {:.0f} % of "
                    "as many that never talk",
                    row.replicas, row.replicas == 1 ? "" : "s", row.images_per_second,
                    100 * row.images_per_second / ideal, 100 * row.share_of_limit));
  }
  shown.figures = {{"show", "scaling"},
                   {"model", flags.step.job.model},
                   {"strategy", flags.step.job.strategy},
                   {"batch_per_replica", flags.batch_per_replica},
                   {"rows", json}};
  return shown;
}

void add_show_scaling(Command& show) {
  struct Flags {
    ShowFlags show{.svg = "scaling.svg"};
    ScaleFlags scale;
  };
  auto flags = std::make_shared<Flags>();
  ScaleFlags& scale = flags->scale;
  scale.rounds = 1;
  scale.step.steps = 40;
  scale.step.warmup = 5;
  scale.step.job.strategy = "mirrored";
  scale.step.job.data = "examples/data/quickdraw";
  Command& command = show.command("scaling", "Speed by number of replicas, beside the ideal line");
  command.place("MODEL", &scale.step.job.model,
                one_of("model", {"mlp", "cnn", "wide", "doodle_cnn", "resnet18"}),
                "mlp, cnn or wide");
  command.add("--data", "DIR", &scale.step.job.data, "Folder of doodles");
  command.add("--strategy", "NAME", &scale.step.job.strategy,
              one_of("strategy", {"mirrored", "multi_worker"}), "mirrored or multi_worker");
  command.add("--replicas", "N,N,...", &scale.replicas, "How many, ascending, one after another");
  command.add("--batch-per-replica", "B", &scale.batch_per_replica, whole_number(1, 1 << 24),
              "Samples of a step, a replica");
  command.add("--steps", "K", &scale.step.steps, whole_number(1, 100'000), "Timed steps");
  command.add("--rounds", "R", &scale.rounds, whole_number(1, 1000), "Medians of so many rounds");
  add_show_flags(command, flags->show);
  command.footer =
      "Example:\n  tutti show scaling mlp --replicas 1,2 --data examples/data/quickdraw";
  command.action = [flags] {
    const ScaleFlags& asked = flags->scale;
    const auto counts = parse_numbers("--replicas", asked.replicas, 1, 4096);
    if (!std::ranges::is_sorted(counts, std::less_equal()))
      throw UsageError(
          fmt::format("--replicas: got {}, expected numbers that ascend; try 1,2", asked.replicas));
    if (counts.size() > kMostCounts)
      throw UsageError(
          fmt::format("--replicas: got {} numbers, expected at most {}, what a screen "
                      "holds; try 1,2,4, or `tutti bench scale` for figures",
                      counts.size(), kMostCounts));
    check_scale(asked);
    require_outputs(flags->show);
    const int64_t threads = threads_of_scale(asked, counts);
    std::vector<ScaleRow> rows;
    for (const int64_t count : counts) rows.push_back(measure_scale(asked, count, threads));
    return present(scaling_shown(asked, rows), flags->show);
  };
}

}  // namespace tutti::cli
