// What `tutti evaluate` says of each class: the library's metrics, in words and as JSON.
#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/random.h"
#include "tutti/cli/train/class_table.h"

#include "tests/support/expect.h"

namespace tutti::cli {
namespace {

// Of five classes: the last is no sample's label, the one before it is never predicted.
struct Labelled {
  Labelled() {
    RandomStream random(5);
    for (int sample = 0; sample < 200; ++sample) {
      labels.push_back(static_cast<int64_t>(random.below(4)));
      for (const bool is_predicted : {true, true, true, false, true})
        outputs.push_back(is_predicted ? static_cast<float>(random.below(1000)) : -1.0F);
    }
  }

  std::vector<double> state_of(const Metric& metric) const {
    std::vector<double> state(static_cast<size_t>(metric.num_states(5)));
    metric.add({.outputs = outputs.data(),
                .labels = labels.data(),
                .rows = std::ssize(labels),
                .width = 5},
               state);
    return state;
  }

  std::vector<int64_t> labels;
  std::vector<float> outputs;
};

TEST(ClassTable, HasTheScoresOfTheMetrics) {
  const Labelled samples;
  const Metric confusion = metrics::confusion_matrix();
  const auto scores = scores_of_classes(confusion.matrix(samples.state_of(confusion)));
  ASSERT_EQ(scores.size(), 5U);
  for (int64_t label = 0; label < 5; ++label) {
    const ClassScores& own = scores[static_cast<size_t>(label)];
    EXPECT_EQ(own.samples, std::ranges::count(samples.labels, label));
    for (const auto& [metric, got] : {std::pair{metrics::precision({.only = label}), own.precision},
                                      std::pair{metrics::recall({.only = label}), own.recall},
                                      std::pair{metrics::f1({.only = label}), own.f1}})
      EXPECT_DOUBLE_EQ(got, metric.value(samples.state_of(metric))) << metric.name();
  }
  EXPECT_GT(scores[0].f1, 0);
  EXPECT_EQ(scores[4].samples, 0);
}

TEST(ClassTable, HasALineAClassAndTheMatrix) {
  EXPECT_THAT(class_table({"cat", "dog", "old cat"}, {{90, 10, 0}, {5, 100, 0}, {0, 0, 0}}),
              ElementsAre("label  precision  recall      f1  samples  class",
                          "    0     0.9474  0.9000  0.9231      100  cat",
                          "    1     0.9091  0.9524  0.9302      105  dog",
                          "    2     0.0000  0.0000  0.0000        0  old cat",
                          "confusion matrix: samples of the row's class taken for the column's",
                          "label    0    1    2",       //
                          "    0   90   10    0  cat",  //
                          "    1    5  100    0  dog",  //
                          "    2    0    0    0  old cat"));
}

TEST(ClassTable, OfManyClassesHasTheMostFrequentMistakes) {
  constexpr size_t kClasses = 21;
  std::vector<std::string> classes;
  Matrix confusion(kClasses, std::vector<double>(kClasses));
  for (size_t label = 0; label < kClasses; ++label) {
    classes.push_back(fmt::format("c{}", label));
    confusion[label][label] = 50;
  }
  const auto right = class_table(classes, confusion);
  ASSERT_EQ(right.size(), 1 + kClasses + 1);
  EXPECT_EQ(right.back(), "no sample was taken for one of another class");

  for (size_t label = 0; label + 1 < kClasses; ++label)
    confusion[label][label + 1] = static_cast<double>(label);
  confusion[3][0] = 19;  // as often as c19 is taken for c20, and before it in the matrix
  auto lines = class_table(classes, confusion);
  ASSERT_EQ(lines.size(), 1 + kClasses + 1 + 10);
  lines.erase(lines.begin(), lines.begin() + 1 + kClasses);
  EXPECT_EQ(lines[0], "the most frequent mistakes:");
  EXPECT_EQ(lines[1], "     19  \"c3\" taken for \"c0\"");
  EXPECT_EQ(lines[2], "     19  \"c19\" taken for \"c20\"");
  EXPECT_EQ(lines[3], "     18  \"c18\" taken for \"c19\"");
  EXPECT_EQ(lines[10], "     11  \"c11\" taken for \"c12\"");
}

TEST(ClassTable, IsJsonToo) {
  const OrderedJson json = json_of_classes({"a", "b"}, {{1, 0}, {3, 4}});
  EXPECT_EQ(json.at("classes").at(0).dump(),
            R"({"class":"a","precision":0.25,"recall":1.0,"f1":0.4,"samples":1})");
  EXPECT_EQ(json.at("classes").size(), 2U);
  EXPECT_EQ(json.at("confusion").dump(), "[[1,0],[3,4]]");
}

}  // namespace
}  // namespace tutti::cli
