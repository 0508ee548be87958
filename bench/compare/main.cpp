// The program tutti_bench: what is measured beside programs of others, and servers beside their
// limit. `tutti bench` measures the rest.
#include "tutti/base/standard_streams.h"
#include "tutti/cli/arguments.h"
#include "tutti/cluster/join/environment_check.h"

#include "bench/compare/commands.h"

int main(int argc, char** argv) {
  tutti::make_failed_writes_errors();
  tutti::cli::Command program("tutti_bench", "Comparisons of tutti, for a checkout.");
  program.footer =
      "Examples:\n"
      "  tutti_bench compare --models mlp --rounds 9 --json compare.json\n"
      "  tutti_bench scale --models gpt4x128 --replicas 1,2\n"
      "  tutti_bench all-reduce --engine tcp --ranks 2\n"
      "  tutti_bench servers --servers 1 --workers 2 --bytes 64M\n\n"
      "Exit codes: those of tutti.";
  tutti::bench::add_compare(program);
  tutti::bench::add_scale(program);
  tutti::bench::add_all_reduce(program);
  tutti::bench::add_servers(program);
  program.when_parsed = tutti::check_environment;
  return tutti::cli::guarded([] { return "tutti_bench"; },
                             [&] { return tutti::cli::parse(program, {argv + 1, argv + argc}); });
}
