/// The commands of tutti_bench; main.cpp registers each. As those of tutti (tutti/cli/commands.h).
/// Thread rule: the main thread alone.
#pragma once

namespace CLI {
class App;
}

namespace tutti::bench {

void add_compare(CLI::App& app, int& exit_code);
void add_all_reduce(CLI::App& app, int& exit_code);
void add_servers(CLI::App& app, int& exit_code);

}  // namespace tutti::bench
