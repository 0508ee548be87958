/// The benchmarks whose flags need a file of their own.
/// Thread rule: the main thread alone.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace tutti::cli {

void add_bench_all_reduce(CLI::App& bench, int& exit_code);
void add_bench_tune(CLI::App& bench, int& exit_code);

/// The answer to `bench NAME`, which is `tutti_bench NOW` since 0.2.
std::string moved(const std::string& name, const std::string& now);

}  // namespace tutti::cli
