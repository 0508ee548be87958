/// The benchmarks whose flags need a file of their own.
/// Thread rule: the main thread alone.
#pragma once

namespace CLI {
class App;
}

namespace tutti::cli {

void add_bench_all_reduce(CLI::App& bench, int& exit_code);
void add_bench_ps(CLI::App& bench, int& exit_code);
void add_bench_tune(CLI::App& bench, int& exit_code);

}  // namespace tutti::cli
