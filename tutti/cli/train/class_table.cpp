#include "tutti/cli/train/class_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <tuple>

namespace tutti::cli {
namespace {

constexpr size_t kWidestMatrix = 20;
constexpr size_t kMostMistakes = 10;

struct Mistake {
  int64_t samples = 0;
  size_t label = 0, taken_for = 0;
};

double share_of(double part, double all) { return all == 0 ? 0 : part / all; }

int64_t samples_in(double count) { return std::llround(count); }

// The most frequent first, of equal ones in the order of the matrix.
std::vector<Mistake> mistakes_in(const Matrix& confusion) {
  std::vector<Mistake> mistakes;
  for (size_t label = 0; label < confusion.size(); ++label)
    for (size_t said = 0; said < confusion.size(); ++said)
      if (said != label && confusion[label][said] > 0)
        mistakes.push_back({samples_in(confusion[label][said]), label, said});
  std::ranges::sort(mistakes, {}, [](const Mistake& one) {
    return std::tuple(-one.samples, one.label, one.taken_for);
  });
  return mistakes;
}

void add_mistakes(const std::vector<std::string>& classes, const Matrix& confusion,
                  std::vector<std::string>& lines) {
  std::vector<Mistake> mistakes = mistakes_in(confusion);
  lines.push_back(mistakes.empty() ? "no sample was taken for one of another class"
                                   : "the most frequent mistakes:");
  mistakes.resize(std::min(mistakes.size(), kMostMistakes));
  for (const Mistake& one : mistakes)
    lines.push_back(fmt::format("{:7}  \"{}\" taken for \"{}\"", one.samples, classes.at(one.label),
                                classes.at(one.taken_for)));
}

void add_matrix(const std::vector<std::string>& classes, const Matrix& confusion,
                std::vector<std::string>& lines) {
  size_t width = std::to_string(classes.size() - 1).size();
  for (const auto& row : confusion)
    for (const double count : row)
      width = std::max(width, std::to_string(samples_in(count)).size());
  lines.emplace_back("confusion matrix: samples of the row's class taken for the column's");
  std::string header = "label";
  for (size_t said = 0; said < classes.size(); ++said)
    header += fmt::format("  {:{}}", said, width);
  lines.push_back(header);
  for (size_t label = 0; label < classes.size(); ++label) {
    std::string line = fmt::format("{:5}", label);
    for (const double count : confusion.at(label))
      line += fmt::format("  {:{}}", samples_in(count), width);
    lines.push_back(line + "  " + classes[label]);
  }
}

}  // namespace

std::vector<ClassScores> scores_of_classes(const Matrix& confusion) {
  std::vector<ClassScores> scores;
  for (size_t label = 0; label < confusion.size(); ++label) {
    double labelled = 0, predicted = 0;
    for (size_t other = 0; other < confusion.size(); ++other) {
      labelled += confusion[label][other];
      predicted += confusion[other][label];
    }
    const double right = confusion[label][label];
    scores.push_back({.precision = share_of(right, predicted),
                      .recall = share_of(right, labelled),
                      .f1 = share_of(2 * right, labelled + predicted),
                      .samples = samples_in(labelled)});
  }
  return scores;
}

std::vector<std::string> class_table(const std::vector<std::string>& classes,
                                     const Matrix& confusion) {
  const std::vector<ClassScores> scores = scores_of_classes(confusion);
  std::vector<std::string> lines{"label  precision  recall      f1  samples  class"};
  for (size_t label = 0; label < classes.size(); ++label) {
    const ClassScores& own = scores.at(label);
    lines.push_back(fmt::format("{:5}  {:9.4f}  {:6.4f}  {:6.4f}  {:7}  {}", label, own.precision,
                                own.recall, own.f1, own.samples, classes[label]));
  }
  const bool fits = classes.size() <= kWidestMatrix;
  fits ? add_matrix(classes, confusion, lines) : add_mistakes(classes, confusion, lines);
  return lines;
}

OrderedJson json_of_classes(const std::vector<std::string>& classes, const Matrix& confusion) {
  OrderedJson json{{"classes", OrderedJson::array()}, {"confusion", OrderedJson::array()}};
  const std::vector<ClassScores> scores = scores_of_classes(confusion);
  for (size_t label = 0; label < classes.size(); ++label) {
    const ClassScores& own = scores.at(label);
    json["classes"].push_back({{"class", classes[label]},
                               {"precision", own.precision},
                               {"recall", own.recall},
                               {"f1", own.f1},
                               {"samples", own.samples}});
    std::vector<int64_t> row;
    for (const double count : confusion[label]) row.push_back(samples_in(count));
    json["confusion"].push_back(row);
  }
  return json;
}

}  // namespace tutti::cli
