/// What the flags of `tutti train` say of recipe and training, for choose() (strategy/choice).
/// Without LibTorch. Thread rule: pure functions.
#pragma once

#include "tutti/cli/train/flags.h"
#include "tutti/strategy/choice/choice.h"

namespace tutti::cli {

RecipeFacts recipe_facts(const TrainFlags& flags);
FitFacts fit_facts(const TrainFlags& flags);

/// Of the job, as far as it is known before workers start.
Machine machine_of(const JobFlags& flags);

}  // namespace tutti::cli
