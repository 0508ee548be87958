#include "tutti/cli/program.h"

#include <string>

#include <CLI/CLI.hpp>

#include "tutti/cli/arguments.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/from_flags.h"
#include "tutti/cluster/join/environment_check.h"

namespace tutti::cli {
namespace {

void register_commands(CLI::App& app, int& exit_code) {
  add_train(app, exit_code);
  add_evaluate(app, exit_code);
  add_predict(app, exit_code);
  add_generate(app, exit_code);
  add_data(app, exit_code);
  add_checkpoint(app, exit_code);
  add_run(app, exit_code);
  add_plan(app, exit_code);
  add_ps(app, exit_code);
  add_bench(app, exit_code);
  add_doctor(app, exit_code);
  add_from_flags(app, exit_code);
}

/// "tutti run" once a subcommand is known, else "tutti".
std::string place_of(const CLI::App& app) {
  const auto used = app.get_subcommands();
  return used.empty() ? "tutti" : "tutti " + used.front()->get_name();
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  CLI::App app{"Distributed deep-learning training on LibTorch.", "tutti"};
  app.footer(
      "Examples:\n"
      "  tutti train doodle_cnn --data examples/data/quickdraw --strategy mirrored --replicas 2\n"
      "  tutti run -n 4 ./hello\n  tutti doctor\n\n"
      "Exit codes: 0 done; 1 the run failed; 2 wrong usage or bad input; 128+signal for a killed "
      "worker.");
  app.set_version_flag("--version", "tutti " TUTTI_VERSION, "Print the version and exit");
  app.require_subcommand(1);
  int exit_code = 0;
  register_commands(app, exit_code);
  app.parse_complete_callback([&app] {
    const bool needs_none = app.got_subcommand("doctor") || app.got_subcommand("completion") ||
                            app.got_subcommand("man-page");
    if (!needs_none) check_environment();
  });
  return guarded([&] { return place_of(app); },
                 [&] {
                   parse(app, argc, argv);
                   return exit_code;
                 });
}

}  // namespace tutti::cli
