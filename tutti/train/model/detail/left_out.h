/// Which tensors of a model and a file load() leaves out. Without LibTorch; not for users.
/// Thread rule: a pure function.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tutti/train/model/load_options.h"

namespace tutti::detail {

struct LeftOut {
  std::set<std::string> names;  ///< on both sides
  LoadReport report;
};

/// Names of the model and of the file, each in its order; `also`: those that the file may have
/// beside the model's, with the model's name of the same tensor. UsageError, which begins with
/// `what`, for a pattern that fits none of them.
LeftOut left_out(const std::vector<std::string>& model, const std::vector<std::string>& file,
                 const std::map<std::string, std::string>& also, const LoadOptions& options,
                 const std::string& what);

}  // namespace tutti::detail
