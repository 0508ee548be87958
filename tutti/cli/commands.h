/// The subcommands of `tutti`; program.cpp registers each. A new one is a function here, a file
/// beside it, and a line in program.cpp.
///
/// Every add_ function describes a command, and sets the action that does the work and gives the
/// exit code: 0 done, 1 the run failed, 2 wrong usage, 128+signal. Errors are thrown;
/// run_program() prints them as `tutti NAME: message` and turns their class into the code.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>

namespace tutti::cli {

struct Command;

/// Test samples evaluated at once, over all replicas: enough for full speed, small in memory.
inline constexpr int64_t kTestBatch = 512;

/// How long workers may take to end after a signal, where nothing is to be written.
inline constexpr double kGraceSeconds = 2;

void add_run(Command& program);
void add_doctor(Command& program);
void add_doctor_record(Command& doctor);  ///< a subcommand of doctor
void add_train(Command& program);
void add_evaluate(Command& program);
void add_predict(Command& program);
void add_export(Command& program);
void add_generate(Command& program);
void add_inspect(Command& program);
void add_data(Command& program);
void add_checkpoint(Command& program);
void add_plan(Command& program);
void add_plan_table(Command& plan);  ///< subcommands of plan
void add_plan_measure(Command& plan);
void add_plan_prediction(Command& plan);  ///< plan MODEL itself, and choose
void add_plan_replay(Command& plan);
void add_plan_hlo(Command& plan);
void add_ps(Command& program);
void add_bench(Command& program);
void add_show(Command& program);

}  // namespace tutti::cli
