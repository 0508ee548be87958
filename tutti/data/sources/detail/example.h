/// tf.train.Example as samples: what of a record becomes which column.
///
/// Of the .proto files (tensorflow/core/example): Example.features = 1, Features.feature = 1, a map
/// of name = 1 to Feature = 2, which is one of bytes_list = 1, float_list = 2, int64_list = 3, each
/// a repeated value = 1, packed or not. Thread rule: an ExampleReader is immutable.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/sample.h"
#include "tutti/data/sources/tfrecord.h"

namespace tutti::data::detail {

class ExampleReader {
 public:
  /// Throws UsageError for features that make no sense: a name twice, a dtype or default that no
  /// feature has, an unknown size that is not the first.
  explicit ExampleReader(std::vector<Feature> features);

  const std::vector<Column>& columns() const noexcept { return columns_; }

  /// Throws DataError with the feature and the reason.
  Sample read(std::string_view record) const;

 private:
  std::vector<Feature> features_;
  std::vector<Column> columns_;
};

/// tfrecord_features() of one record.
std::vector<Feature> features_in(std::string_view record);

/// What a record holds: a feature, or, of a tf.train.SequenceExample, a list of such (2, as 1 a map
/// by name; FeatureList.feature = 1). Strings lie in the record.
struct ExampleValue {
  std::string name;
  std::string kind;       ///< "int64", "float32", "string", "3 strings"
  bool in_lists = false;  ///< of a SequenceExample, which no column is made of
  std::vector<std::string_view> strings = {};
};

/// All of it, read to the last value. Throws DataError for what is neither of the two.
std::vector<ExampleValue> values_in(std::string_view record);

/// One sample as an Example, its columns as features_of() says. DataError when it is not as
/// `columns` say.
std::string encode_example(const std::vector<Column>& columns, const Sample& sample);

}  // namespace tutti::data::detail
