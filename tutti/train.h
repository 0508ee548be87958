/// The Keras way: compile, fit, evaluate, predict, with the networks that come along.
///
/// What a program that trains needs, without the layers of LibTorch: whoever writes networks
/// includes <torch/nn.h> beside it, or the headers of the layers that are in them; tutti/data.h has
/// the files and datasets that are not here.
#pragma once

#include "tutti/data/combine.h"
#include "tutti/data/dataset.h"
#include "tutti/data/quickdraw.h"
#include "tutti/data/sources/recognise.h"
#include "tutti/exported/from_export.h"
#include "tutti/exported/module.h"
#include "tutti/models/generate.h"
#include "tutti/models/gpt.h"
#include "tutti/models/models.h"
#include "tutti/nn/lambda.h"
#include "tutti/nn/layers.h"
#include "tutti/nn/to_onnx.h"
#include "tutti/optim/rule.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/strategy/input/torch_data.h"
#include "tutti/strategy/strategy.h"
#include "tutti/strategy/tpu_strategy.h"
#include "tutti/sync/replicated/whole_rules.h"
#include "tutti/train/callbacks/schedules.h"
#include "tutti/train/losses/overlap.h"
#include "tutti/train/model/added_losses.h"
#include "tutti/train/model/model.h"
#include "tutti/train/model/predictor.h"
#include "tutti/train/model/saved_model.h"
#include "tutti/train/model/tensorboard.h"
#include "tutti/train/model/weight_average.h"
#include "tutti/train/model/weights.h"
