/// The names of transforms: "random_resized_crop(224, scale 0.5 to 1)". First numbers in order,
/// then options, a word and its numbers; those at their defaults are left out.
/// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data::detail {

/// Writes a name.
class SpecWriter {
 public:
  explicit SpecWriter(std::string_view name) : text_(name), empty_(true) { text_ += '('; }

  SpecWriter& number(double value);
  /// "key 1 2 3"; nothing where they are the defaults. A flag has no values.
  SpecWriter& option(std::string_view key, const std::vector<double>& values,
                     const std::vector<double>& defaults);
  SpecWriter& flag(std::string_view key, bool set);
  std::string text() const { return text_ + ")"; }

 private:
  void begin_part();

  std::string text_;
  bool empty_;
};

/// Reads one. Throws UsageError, with the name, for anything that is not as above.
class SpecReader {
 public:
  explicit SpecReader(std::string_view text);

  const std::string& name() const { return name_; }
  int64_t numbers() const;  ///< how many stand without a word
  double number(int64_t i);
  int64_t whole(int64_t i);  ///< number(i), which must be one
  std::vector<double> option(std::string_view key, const std::vector<double>& defaults);
  double option(std::string_view key, double by_default);
  int64_t whole(std::string_view key, int64_t by_default);
  bool flag(std::string_view key);
  /// Throws UsageError for options that nobody has asked for, with the nearest that somebody has,
  /// and unless there are between `least` and `most` numbers.
  void finish(int64_t least, int64_t most) const;

 private:
  struct Part {
    std::string key;  // empty: a number alone
    std::vector<double> values;
  };
  [[noreturn]] void fail(const std::string& why) const;
  Part parse_part(std::string_view text) const;
  const Part* find(std::string_view key);

  std::string text_, name_;
  std::vector<Part> parts_;
  std::vector<std::string> known_;
};

}  // namespace tutti::data::detail
