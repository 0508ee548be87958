/// BatchTransform: what Dataset::map() does to samples of a whole global batch: mixup, cutmix.
///
/// Each sample is given its partner alone, so that a replica that has a part of the batch need not
/// compute the rest. Thread rule: immutable; apply() is called from many threads at once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/data/draw.h"
#include "tutti/data/sample.h"

namespace tutti::data {

class BatchTransform {
 public:
  virtual ~BatchTransform() = default;

  virtual std::string name() const = 0;

  /// As Transform::columns().
  virtual std::vector<Column> columns(const std::vector<Column>& in) const = 0;

  /// The sample made of `own`, row i of the global batch, and of its partner, row i xor 1: the
  /// order is random already. With `alone` there is none (the last row of an odd batch), and
  /// `partner` is `own`. `draw` gives all rows of a batch the same numbers. Neither sample may be
  /// changed in place.
  virtual Sample apply(const Sample& own, const Sample& partner, bool alone, Draw& draw) const = 0;
};

using BatchTransformHandle = std::shared_ptr<const BatchTransform>;

}  // namespace tutti::data
