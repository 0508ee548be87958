/// What `tutti evaluate` says of each class, by a confusion matrix: rows are labels, columns what
/// was predicted. Without LibTorch.
/// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/train/metrics/metrics.h"

namespace tutti::cli {

/// Beyond so many there is no matrix: as JSON, one of 1024 classes is 2 MB a checkpoint.
inline constexpr int64_t kMostClassesOfATable = 1024;

struct ClassScores {
  double precision = 0, recall = 0, f1 = 0;  ///< as metrics::precision() and so on; 0 / 0 is 0
  int64_t samples = 0;                       ///< that have its label
};

/// By label.
std::vector<ClassScores> scores_of_classes(const Matrix& confusion);

/// Lines: a table of the classes, then the matrix, or, of more than 20 classes, the ten mistakes
/// that are the most frequent. `classes`: names by label.
std::vector<std::string> class_table(const std::vector<std::string>& classes,
                                     const Matrix& confusion);

/// {"classes": [{"class": "cat", "precision": 0.9, ...}, ...], "confusion": [[90, 10], ...]}
OrderedJson json_of_classes(const std::vector<std::string>& classes, const Matrix& confusion);

}  // namespace tutti::cli
