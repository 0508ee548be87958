#include "tutti/cli/train/submission.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/printable.h"

namespace tutti::cli {
namespace {

namespace fs = std::filesystem;

bool can_stand_in_a_row(std::string_view name) {
  return !name.empty() && std::ranges::none_of(name, [](unsigned char character) {
    return character == ',' || character == '"' || character < ' ' || character == 0x7f;
  });
}

std::string word_of(std::string name) {
  std::ranges::replace(name, ' ', '_');
  return name;
}

bool are_one(const fs::path& file, const fs::path& other) {
  std::error_code failure;
  return fs::equivalent(file, other, failure) && !failure;
}

}  // namespace

data::KeyedStrokes drawings_to_submit(const std::string& file) {
  try {
    return data::keyed_strokes(file);
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}\n  a submission has a row for each drawing: none is written",
                                error.what()));
  }
}

std::string words_without_a_class(const std::vector<std::string>& classes) {
  constexpr size_t kMostNamed = 5;
  std::vector<std::string> others;
  for (const std::string& name : classes)
    if (std::ranges::find(data::kaggle_classes(), name) == data::kaggle_classes().end())
      others.push_back(printable(name));
  if (others.empty()) return {};
  const size_t named = std::min(others.size(), kMostNamed);
  return fmt::format(
      "{} of the model's {} classes are none of the challenge's {}, so that no drawing of it is "
      "one: {}{}; tutti train --classes kaggle trains on those",
      others.size(), classes.size(), data::kaggle_classes().size(),
      fmt::join(std::span(others).first(named), ", "), named < others.size() ? ", ..." : "");
}

void require_no_input(const std::string& flag, const std::string& file,
                      std::span<const std::string> inputs) {
  const fs::path folder = fs::absolute(file).parent_path();
  for (const std::string& input : inputs) {
    if (are_one(file, input))
      throw UsageError(
          fmt::format("{} {}: is {}, which is read; expected a file that may be overwritten", flag,
                      file, input));
    if (are_one(folder, input))
      throw UsageError(fmt::format("{} {}: lies in {}, which is read; expected a file elsewhere",
                                   flag, file, input));
  }
}

Submission::Submission(const std::vector<std::string>& classes) {
  std::unordered_map<std::string, std::string> names;
  for (const std::string& name : classes) {
    if (!can_stand_in_a_row(name))
      throw UsageError(fmt::format(
          "--submission: the class \"{}\" cannot be a word there; expected one character or more, "
          "and no comma, quote or control character",
          printable(name)));
    class_words_.push_back(word_of(name));
    const auto [other, is_new] = names.emplace(class_words_.back(), name);
    if (!is_new)
      throw UsageError(
          fmt::format("--submission: the classes \"{}\" and \"{}\" would be one word, {}",
                      other->second, name, class_words_.back()));
  }
}

void Submission::expect(std::span<const int64_t> keys, std::function<std::string(int64_t)> where) {
  where_.push_back(std::move(where));
  int64_t number = 0;
  for (const int64_t key : keys) {
    const Row row{.file = where_.size() - 1, .number = number++, .key = key};
    const auto [before, is_new] = by_key_.emplace(key, rows_.size());
    if (!is_new)
      throw DataError(fmt::format("{}: was there before, as {}; expected each key_id once",
                                  place_of(row), place_of(rows_[before->second])));
    rows_.push_back(row);
  }
}

void Submission::say(std::span<const int64_t> labels) {
  if (num_said() == num_expected())
    throw UsageError(
        fmt::format("--submission: got a prediction beyond the {} drawings", num_expected()));
  if (labels.empty() || std::ssize(labels) > kMostWords)
    throw UsageError(fmt::format("--submission: {}: got {} words, expected 1 to {}", next_place(),
                                 labels.size(), kMostWords));
  std::vector<std::string> words;
  for (const int64_t label : labels) {
    if (label < 0 || label >= std::ssize(class_words_))
      throw UsageError(fmt::format("--submission: {}: got label {}, there are {} classes",
                                   next_place(), label, class_words_.size()));
    words.push_back(class_words_[static_cast<size_t>(label)]);
    if (std::ranges::count(words, words.back()) > 1)
      throw UsageError(fmt::format("--submission: {}: got {} twice", next_place(), words.back()));
  }
  words_.push_back(fmt::format("{}", fmt::join(words, " ")));
}

std::string Submission::place_of(const Row& row) const {
  return fmt::format("{}, key_id {}", where_[row.file](row.number), row.key);
}

std::string Submission::next_place() const {
  return num_said() < num_expected() ? place_of(rows_[words_.size()]) : "the end";
}

std::string Submission::text() const {
  if (num_said() < num_expected())
    throw DataError(fmt::format(
        "--submission: {} of {} drawings have no prediction, the first is {}; a submission has a "
        "row for each",
        num_expected() - num_said(), num_expected(), next_place()));
  std::string text = "key_id,word\n";
  for (size_t i = 0; i < rows_.size(); ++i) text += fmt::format("{},{}\n", rows_[i].key, words_[i]);
  return text;
}

}  // namespace tutti::cli
