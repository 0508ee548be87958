#include "tutti/cli/program.h"

#include <string>

#include "tutti/cli/arguments.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/from_flags.h"
#include "tutti/cluster/join/environment_check.h"

namespace tutti::cli {
namespace {

void register_commands(Command& program) {
  add_train(program);
  add_evaluate(program);
  add_predict(program);
  add_export(program);
  add_generate(program);
  add_inspect(program);
  add_data(program);
  add_checkpoint(program);
  add_run(program);
  add_plan(program);
  add_ps(program);
  add_bench(program);
  add_show(program);
  add_doctor(program);
  add_from_flags(program);
}

/// "tutti run" once a subcommand is known, else "tutti".
std::string place_of(const Command& program) {
  return program.chosen == nullptr ? "tutti" : "tutti " + program.chosen->name;
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  Command program("tutti", "Distributed deep-learning training on LibTorch.");
  program.footer =
      "Examples:\n"
      "  tutti train doodle_cnn --data examples/data/quickdraw --strategy mirrored --replicas 2\n"
      "  tutti run -n 4 ./hello\n  tutti doctor\n\n"
      "Exit codes: 0 done; 1 the run failed; 2 wrong usage or bad input; 128+signal for a killed "
      "worker.";
  program.add_version("tutti " TUTTI_VERSION);
  register_commands(program);
  program.when_parsed = [&program] {
    const std::string& command = program.chosen->name;
    if (command != "doctor" && command != "completion" && command != "man-page")
      check_environment();
  };
  return guarded([&] { return place_of(program); },
                 [&] { return parse(program, {argv + 1, argv + argc}); });
}

}  // namespace tutti::cli
