/// The commands of tutti_bench; main.cpp registers each. As those of tutti (tutti/cli/commands.h).
/// Thread rule: the main thread alone.
#pragma once

#include "tutti/cli/arguments.h"

namespace tutti::bench {

void add_compare(cli::Command& program);
void add_scale(cli::Command& program);
void add_all_reduce(cli::Command& program);
void add_servers(cli::Command& program);

}  // namespace tutti::bench
