/// Files that trainings leave and read: checkpoints, snapshots of servers, what a machine was
/// measured to do, and what TensorBoard shows. Without LibTorch.
#pragma once

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/data/safetensors.h"
#include "tutti/observe/tensorboard.h"
#include "tutti/plan/machine.h"
#include "tutti/ps/snapshot/snapshot.h"
