// tutti plan hlo: a network's training step as StableHLO, as an accelerator's compiler takes it.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/idle.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/zoo.h"
#include "tutti/train/lowered/step.h"

namespace tutti::cli {
namespace {

struct PlanHloFlags {
  std::string model, optimizer = "adam", loss, precision = "float32", out;
  int replicas = 1;
  int64_t batch = 64;
  bool predict = false;
};

LoweredProgram lowered(const PlanHloFlags& flags) {
  const nn::Graph graph = zoo_network(flags.model).graph;
  const DType product = flags.precision == "bfloat16" ? DType::bfloat16 : DType::float32;
  if (flags.predict) return lower_prediction(graph, flags.batch, product);
  const bool regression = graph.output_shape() == nn::Shape{1};
  const Loss loss = losses::loss_by_name(!flags.loss.empty() ? flags.loss
                                         : regression        ? "mean_squared_error"
                                                             : "sparse_categorical_crossentropy");
  if (flags.batch % flags.replicas != 0)
    throw UsageError(fmt::format("--batch-size {} is not a multiple of {} replicas", flags.batch,
                                 flags.replicas));
  const int64_t rows = flags.batch / flags.replicas;
  return lower_step(graph, loss, optim::rule_by_name(flags.optimizer),
                    {.batch = rows,
                     .replicas = flags.replicas,
                     .product = product,
                     .target = target_type(graph, loss, rows)});
}

const std::vector<NeededBy<PlanHloFlags>>& needs_of_hlo() {
  constexpr std::string_view kOfSteps = "a prediction (--predict) has none";
  static const auto trains = [](const PlanHloFlags& flags) { return !flags.predict; };
  static const std::vector<NeededBy<PlanHloFlags>> rows = {{"--optimizer", trains, kOfSteps},
                                                           {"--loss", trains, kOfSteps},
                                                           {"--replicas", trains, kOfSteps}};
  return rows;
}

void plan_hlo(const PlanHloFlags& flags) {
  const std::string text = lowered(flags).text;
  if (flags.out.empty())
    fmt::print("{}", text);
  else
    write_file_atomically(flags.out, text);
}

}  // namespace

void add_plan_hlo(Command& plan) {
  const auto flags = std::make_shared<PlanHloFlags>();
  Command& command = plan.command(
      "hlo", "Print a training step as StableHLO, as compilers of accelerators take it");
  command.place("MODEL", &flags->model, {}, "Of the zoo");
  command.add("--batch-size", "GLOBAL", &flags->batch, in_range(1, int64_t{1} << 30),
              "Samples of all replicas in a step");
  command.add("--replicas", "N", &flags->replicas, in_range(1, 4096), "That share the batch");
  command.add("--optimizer", "NAME", &flags->optimizer, one_of("optimizer", optim::rule_names()),
              "That updates the parameters");
  command
      .add("--loss", "NAME", &flags->loss, one_of("loss", losses::loss_names()),
           "That training makes small")
      .preset = "by the network's outputs";
  command.add("--precision", "TYPE", &flags->precision,
              one_of("precision", {"float32", "bfloat16"}),
              "Of what products are made; their sums are in float32");
  command.flag("--predict", &flags->predict, "The forward pass of evaluation alone");
  command.add("--out", "FILE", &flags->out, "Writes it there");
  command.footer =
      "Examples:\n"
      "  tutti plan hlo mlp --batch-size 64\n"
      "  tutti plan hlo resnet18 --replicas 8 --precision bfloat16 --out step.mlir";
  command.action = [&command, flags] {
    refuse_idle(command.typed(), *flags, needs_of_hlo());
    plan_hlo(*flags);
    return 0;
  };
}

}  // namespace tutti::cli
