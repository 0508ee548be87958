// The program tutti_bench: what is measured beside programs of others, and servers beside their
// limit. `tutti bench` measures the rest.
#include <CLI/CLI.hpp>

#include "tutti/base/standard_streams.h"
#include "tutti/cli/arguments.h"
#include "tutti/cluster/join/environment_check.h"

#include "bench/compare/commands.h"

int main(int argc, char** argv) {
  tutti::make_failed_writes_errors();
  CLI::App app{"Comparisons of tutti, for a checkout.", "tutti_bench"};
  app.footer(
      "Examples:\n"
      "  tutti_bench compare --models mlp --rounds 9 --json compare.json\n"
      "  tutti_bench all-reduce --engine tcp --ranks 2\n"
      "  tutti_bench servers --servers 1 --workers 2 --bytes 64M\n\n"
      "Exit codes: those of tutti.");
  app.require_subcommand(1);
  int exit_code = 0;
  tutti::bench::add_compare(app, exit_code);
  tutti::bench::add_all_reduce(app, exit_code);
  tutti::bench::add_servers(app, exit_code);
  app.parse_complete_callback([] { tutti::check_environment(); });
  return tutti::cli::guarded([] { return "tutti_bench"; },
                             [&] {
                               tutti::cli::parse(app, argc, argv);
                               return exit_code;
                             });
}
