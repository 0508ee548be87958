/// What `tutti train --json` says of a training.
#pragma once

#include <string>

#include "tutti/base/json.h"
#include "tutti/cli/train/flags.h"
#include "tutti/train/model/model.h"

namespace tutti::cli {

/// How it was for workers that may be lost.
struct Attendance {
  int workers = 1;
  int finished = 1;
};
Attendance attendance_of(Strategy& strategy);

/// The fields of docs/guide/command_line.md. Asks the servers, where there are some, for theirs.
OrderedJson figures_of(const TrainFlags& flags, const DataSpec& spec, const Strategy& strategy,
                       Model& model, const History& history, const std::string& sha256,
                       const Attendance& there, int64_t wire_bytes);

}  // namespace tutti::cli
