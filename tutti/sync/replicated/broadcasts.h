/// What ranks of a loop of one's own begin with alike: parameters, buffers, state of an optimizer.
/// (Bytes and JSON: tutti/comm/group/objects.h.)
///
/// Collective: every rank of the group calls the same, with the same root. Thread rule: that of the
/// Group's operations.
#pragma once

#include "tutti/comm/group/group.h"

namespace torch::nn {
class Module;
}

namespace torch::optim {
class Optimizer;
}

namespace tutti {

/// Copies rank `root`'s parameters and buffers to all ranks. Mismatch naming the first parameter
/// when the models differ.
void broadcast_parameters(const torch::nn::Module& module, Group group, int root = 0);

/// The same of buffers alone, as running statistics of batch norms, which are each rank's own while
/// it trains: before evaluation or save, or before each forward pass, as DDP does.
void broadcast_buffers(const torch::nn::Module& module, Group group, int root = 0);

/// Gives rank `root`'s state of its optimizer, options of groups (learning rates) with it, to those
/// of all ranks, where it replaces what they have. After broadcast_parameters(), for a loop that
/// has read both on one rank. Mismatch on all where kinds, groups or their numbers of parameters
/// differ; an error on all where `root` cannot save its own, or another one cannot load it and
/// keeps what it had.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, Group group, int root = 0);

}  // namespace tutti
