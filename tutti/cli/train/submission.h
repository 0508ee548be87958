/// Submission: predictions as Kaggle's Quick, Draw! Doodle Recognition Challenge takes them.
///
/// A CSV file: the line "key_id,word", then for each drawing of the test a line of its key and of
/// one to three words, the likeliest first, blanks between them; the blanks of a word are written
/// as underscores: "9000003627287624,alarm_clock book house". A row is said in the order in which
/// it was expected, so that none can be forgotten. Without LibTorch.
/// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/data/sources/strokes.h"

namespace tutti::cli {

/// data::keyed_strokes(), whose DataError then says that no submission is written.
data::KeyedStrokes drawings_to_submit(const std::string& file);

/// Which of `classes` are none of data::kaggle_classes(): a sentence; "": all are some.
std::string words_without_a_class(const std::vector<std::string>& classes);

/// Throws UsageError where `file`, which `flag` names and which is to be written, is one of
/// `inputs`, or lies in a folder that is one: it would be gone, or be read the next time.
void require_no_input(const std::string& flag, const std::string& file,
                      std::span<const std::string> inputs);

class Submission {
 public:
  static constexpr int64_t kMostWords = 3;

  /// `classes`: names by label. Throws UsageError where one cannot be a word there (it is empty, or
  /// has a comma, a quote or a control character), and where two would be the same word.
  explicit Submission(const std::vector<std::string>& classes);

  /// The drawings of one more file, in its order: `keys` and `where` as data::KeyedStrokes has
  /// them. Throws DataError, with both places, for a key that was there before.
  void expect(std::span<const int64_t> keys, std::function<std::string(int64_t)> where);

  /// What is said of the next drawing: labels, the likeliest first. Throws UsageError unless there
  /// is a next one, and these are one to kMostWords different labels of classes.
  void say(std::span<const int64_t> labels);

  int64_t num_expected() const noexcept { return std::ssize(rows_); }
  int64_t num_said() const noexcept { return std::ssize(words_); }

  /// "test.csv, line 18, key_id 9000003627287624": the next drawing.
  std::string next_place() const;

  /// The file's text. Throws DataError while a drawing has no prediction, and names the first.
  std::string text() const;

 private:
  struct Row {
    size_t file = 0;
    int64_t number = 0;  ///< in it, from 0
    int64_t key = 0;
  };
  std::string place_of(const Row& row) const;

  std::vector<std::string> class_words_;
  std::vector<std::function<std::string(int64_t)>> where_;  // of each file
  std::vector<Row> rows_;
  std::unordered_map<int64_t, size_t> by_key_;  // places in rows_
  std::vector<std::string> words_;              // of the first rows
};

}  // namespace tutti::cli
