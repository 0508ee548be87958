/// What `tutti train` settles before the first step: all that may be refused is refused there.
/// Thread rule: one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "tutti/cli/output_folder.h"
#include "tutti/cli/train/flags.h"
#include "tutti/cli/train/network.h"
#include "tutti/train/model/model.h"

namespace tutti::cli {

struct TrainPlan {
  StrategyOptions strategy;
  data::Dataset train, test;
  DataSpec spec;
  std::vector<std::string> sentences;  ///< of what was chosen without a word
  Network network;
  CompileOptions compile;
  FitOptions fit;
  OutputFolder out;
};

/// Reads MODEL and the data; what `flags` leave open, as the batch, is there behind it. Throws
/// UsageError and DataError for all that does not go together, or is not there.
TrainPlan settle(TrainFlags& flags);

/// Of --pipeline, --cut and --recompute. UsageError for what is none.
parallel::ModelLayout model_layout(const TrainFlags& flags);

}  // namespace tutti::cli
