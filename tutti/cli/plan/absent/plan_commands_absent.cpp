// Compiled instead of tutti/extras/plan_commands where TUTTI_WITH_EXTRAS is off.
#include <fmt/format.h>

#include <string>

#include <CLI/CLI.hpp>

#include "tutti/base/error.h"
#include "tutti/cli/commands.h"

namespace tutti::cli {
namespace {

void add_absent(CLI::App& plan, const std::string& name) {
  CLI::App* const command = plan.add_subcommand(name, "Not in this build");
  command->prefix_command();
  command->callback([name] {
    throw UsageError(fmt::format("plan {} is not in this build (TUTTI_WITH_EXTRAS=OFF)", name));
  });
}

}  // namespace

void add_plan_table(CLI::App& plan, int& /*exit_code*/) { add_absent(plan, "table"); }

void add_plan_replay(CLI::App& plan, int& /*exit_code*/) { add_absent(plan, "replay"); }

}  // namespace tutti::cli
