/// `tutti show pipeline`: a step of a pipeline: who computes which microbatch when, and who waits.
/// Thread rule: the main thread alone; pipeline_shown() is a pure function.
#pragma once

#include <string>
#include <vector>

#include "tutti/cli/show/shown.h"
#include "tutti/mesh/schedule.h"
#include "tutti/observe/recorder.h"

namespace tutti::cli {

struct Command;

struct PipelineTrace {
  mesh::Schedule schedule;
  std::vector<Recorded> events;  ///< "pipeline." of one step
  int64_t border_bytes = 0;      ///< of a microbatch between two stages
};

/// One step of a multilayer perceptron, cut into the schedule's stages, on a thread a rank. The
/// step before it is not in the trace.
PipelineTrace run_pipeline(const mesh::Schedule& schedule);

/// The drawing and the figures of one. Throws Error for a trace that lacks something.
Shown pipeline_shown(const PipelineTrace& trace);

void add_show_pipeline(Command& show);

}  // namespace tutti::cli
