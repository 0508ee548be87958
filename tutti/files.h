/// Files that trainings leave: checkpoints, snapshots of servers, weights, and what TensorBoard
/// shows. Without LibTorch.
#pragma once

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/data/safetensors.h"
#include "tutti/observe/confusion.h"
#include "tutti/observe/tensorboard.h"
#include "tutti/ps/snapshot/snapshot.h"
