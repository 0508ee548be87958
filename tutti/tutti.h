/// The whole library in one header.
///
/// Programs that train include this one. Code that uses a single floor (a reader of data files, a
/// tool that talks over a Group) includes that floor's headers and stays free of LibTorch.
#pragma once

#include <torch/torch.h>

#include "tutti/base/array.h"
#include "tutti/base/deadline.h"
#include "tutti/base/dtype.h"
#include "tutti/base/error.h"
#include "tutti/base/stop.h"
#include "tutti/cluster/join/join.h"
#include "tutti/comm/group/group.h"
#include "tutti/comm/group/work.h"
#include "tutti/data/dataset.h"
#include "tutti/data/npy.h"
#include "tutti/data/quickdraw.h"
#include "tutti/data/safetensors.h"
#include "tutti/models/models.h"
#include "tutti/nn/collectives.h"
#include "tutti/nn/dropout.h"
#include "tutti/nn/graph.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/sample_context.h"
#include "tutti/nn/sparse_embedding.h"
#include "tutti/nn/sync_batch_norm.h"
#include "tutti/optim/rule.h"
#include "tutti/steps/cluster_coordinator.h"
#include "tutti/strategy/distributed_dataset.h"
#include "tutti/strategy/loss_scaling.h"
#include "tutti/strategy/remote_data.h"
#include "tutti/strategy/replicated.h"
#include "tutti/strategy/strategy.h"
#include "tutti/strategy/variable.h"
#include "tutti/sync/before_use.h"
#include "tutti/sync/device/config.h"
#include "tutti/sync/distributed_optimizer.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/callbacks/schedules.h"
#include "tutti/train/model/model.h"
#include "tutti/train/model/weights.h"
