/// The benchmarks whose flags need a file of their own.
/// Thread rule: the main thread alone.
#pragma once

#include <string>

namespace tutti::cli {

struct Command;

void add_bench_all_reduce(Command& bench);
void add_bench_tune(Command& bench);

/// The answer to `bench NAME`, which is `tutti_bench NOW` since 0.2.
std::string moved(const std::string& name, const std::string& now);

}  // namespace tutti::cli
