/// Transform: what Dataset::map() does to one sample; with a name, so that it can be saved beside
/// the weights, reported, and made again in another process.
///
///   data.map(transforms::decode()).map(transforms::random_resized_crop(224))
///
/// Derive from it for one of your own, or give map() a lambda.
/// Thread rule: immutable; apply() is called from many threads at once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/data/draw.h"
#include "tutti/data/sample.h"

namespace tutti::data {

class Transform {
 public:
  virtual ~Transform() = default;

  /// With its options, as in code: "resize(64)", "random_resized_crop(224, scale 0.08 to 1)".
  /// Decides what is in a cache: two that differ in what they do have different names.
  virtual std::string name() const = 0;

  /// What comes out of columns of that kind. Throws UsageError, with both, for columns that it
  /// cannot take: before anything is read.
  virtual std::vector<Column> columns(const std::vector<Column>& in) const = 0;

  /// The sample made of `in`, which may be changed in place where its memory is `in`'s alone
  /// (owned()). Throws DataError for a sample that is damaged.
  virtual Sample apply(Sample in, Draw& draw) const = 0;

  /// Whether it draws. What draws differs from epoch to epoch: it cannot be cached or filtered by.
  virtual bool draws() const = 0;

  /// Whether the name says all that it does, so that results may be kept in files under it.
  virtual bool named() const { return true; }
};

using TransformHandle = std::shared_ptr<const Transform>;

}  // namespace tutti::data
