/// A model's tensors as a whole: described, compared between ranks, copied and broadcast.
#pragma once

#include <string>

#include "tutti/comm/group.h"

namespace torch::nn {
class Module;
}

namespace tutti::detail {

/// One line a parameter, then one a buffer: kind, name, dtype, shape.
std::string describe(const torch::nn::Module& module);

/// Mismatch naming the first line in which rank `other_rank` differs from rank 0.
void require_same(const std::string& first, const std::string& other, int other_rank);

/// Collective: the same Mismatch on every rank when any rank's description differs from rank 0's.
void compare_over_group(Group group, const std::string& mine, Millis limit);

/// Copies parameters and buffers between two models of this process that have the same description.
void copy_values(const torch::nn::Module& from, const torch::nn::Module& to);

/// Collective: rank `root`'s parameters and buffers become everybody's.
void broadcast_values(Group group, const torch::nn::Module& module, int root, Millis limit);

}  // namespace tutti::detail
