/// Loops of one's own: replicas of a model, their optimizer, variables, and what replicas exchange
/// within a step.
#pragma once

#include "tutti/nn/collectives.h"
#include "tutti/nn/dense.h"
#include "tutti/nn/dropout.h"
#include "tutti/nn/sample_context.h"
#include "tutti/nn/sync_batch_norm.h"
#include "tutti/optim/rule.h"
#include "tutti/start.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/strategy/input/remote_data.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/optimizer/loss_scaling.h"
#include "tutti/strategy/values/variable.h"
#include "tutti/sync/before_use.h"
#include "tutti/sync/replicated/distributed_optimizer.h"
#include "tutti/sync/tensors.h"
