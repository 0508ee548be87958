/// The subcommands of `tutti`; program.cpp registers each. A new one is a function here, a file
/// beside it, and a line in program.cpp.
///
/// Every add_ function describes its flags on `app` and sets a callback that does the work and
/// stores the exit code: 0 done, 1 the run failed, 2 wrong usage, 128+signal. Errors are thrown;
/// run_program() prints them as `tutti NAME: message` and turns their class into the code.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>

namespace CLI {
class App;
}

namespace tutti::cli {

/// Test samples evaluated at once, over all replicas: enough for full speed, small in memory.
inline constexpr int64_t kTestBatch = 512;

/// How long workers may take to end after a signal, where nothing is to be written.
inline constexpr double kGraceSeconds = 2;

void add_run(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_doctor_record(CLI::App& doctor, int& exit_code);  ///< a subcommand of doctor
void add_train(CLI::App& app, int& exit_code);
void add_evaluate(CLI::App& app, int& exit_code);
void add_predict(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_data(CLI::App& app, int& exit_code);
void add_checkpoint(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_plan_table(CLI::App& plan, int& exit_code);  ///< subcommands of plan
void add_plan_measure(CLI::App& plan, int& exit_code);
void add_plan_prediction(CLI::App& plan, int& exit_code);  ///< plan MODEL itself, and choose
void add_plan_replay(CLI::App& plan, int& exit_code);
void add_ps(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);

}  // namespace tutti::cli
