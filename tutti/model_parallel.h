/// One model on several ranks: networks described as graphs, or as stages of one's own, which a
/// mesh deals out.
#pragma once

#include "tutti/nn/graph.h"
#include "tutti/nn/graph_module.h"
#include "tutti/train.h"
#include "tutti/train/model/staged_model.h"
