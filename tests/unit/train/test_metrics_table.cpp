// Metrics against tests/tables/metrics.json: what scikit-learn and Keras say (make_metrics.py), all
// samples at once and in parts whose states are added. And what the table has not: errors, NaN.
#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <regex>

#include <nlohmann/json.hpp>

#include "tutti/train/metrics/better.h"
#include "tutti/train/metrics/metrics.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using metrics::Average;
using metrics::Curve;
using nlohmann::json;

/// Samples with memory of their own.
struct Samples {
  std::vector<float> outputs;
  std::vector<int64_t> labels{};
  std::vector<float> targets{};
  std::vector<float> weights{};
  int64_t width = 1;

  int64_t count() const { return std::ssize(outputs) / width; }
  SampleRows rows(int64_t begin, int64_t end) const {
    const int64_t target_width = std::ssize(targets) / count();
    return {.outputs = outputs.data() + begin * width,
            .labels = labels.empty() ? nullptr : labels.data() + begin,
            .rows = end - begin,
            .width = width,
            .targets = targets.empty() ? nullptr : targets.data() + begin * target_width,
            .target_width = target_width,
            .weights = weights.empty() ? nullptr : weights.data() + begin};
  }
};

Samples samples_from(const json& text) {
  return {.outputs = text.at("outputs"),
          .labels = text.value("labels", std::vector<int64_t>{}),
          .targets = text.value("targets", std::vector<float>{}),
          .weights = text.value("weights", std::vector<float>{}),
          .width = text.at("width")};
}

std::vector<double> state_of_all(const Metric& metric, const Samples& samples) {
  std::vector<double> state(static_cast<size_t>(metric.num_states(samples.width)));
  metric.add(samples.rows(0, samples.count()), state);
  return state;
}

/// Of parts of 1, 2, 3, ... and no samples, each with a state of its own.
std::vector<double> state_of_parts(const Metric& metric, const Samples& samples) {
  std::vector<double> sum(static_cast<size_t>(metric.num_states(samples.width)));
  for (int64_t begin = 0, size = 1; begin < samples.count(); begin += size++) {
    std::vector<double> part(sum.size());
    metric.add(samples.rows(begin, begin), part);
    metric.add(samples.rows(begin, std::min(begin + size, samples.count())), part);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return sum;
}

double value_of(const Metric& metric, const Samples& samples) {
  return metric.value(state_of_all(metric, samples));
}

/// "micro_auc of 11 thresholds", "pr_auc of logits", "average_precision of 100 bins of many
/// logits".
std::optional<Metric> curve_of(const std::string& name) {
  static const std::regex form(
      "(micro_|weighted_)?(auc|pr_auc|average_precision)( of (\\d+) (thresholds|bins))?"
      "( of many)?( of)?( logits)?");
  std::smatch words;
  if (!std::regex_match(name, words, form)) return {};
  const auto average = words[1] == "micro_"      ? Average::micro
                       : words[1] == "weighted_" ? Average::weighted
                                                 : Average::macro;
  const bool multi_label = words[6].matched;
  const std::optional<bool> from_logits =
      words[8].matched ? std::optional<bool>(true) : std::nullopt;
  const int points = words[4].matched ? std::stoi(words[4]) : 0;
  if (words[2] == "average_precision")
    return metrics::average_precision({.bins = points > 0 ? points : 10'000,
                                       .average = average,
                                       .multi_label = multi_label,
                                       .from_logits = from_logits});
  return metrics::auc({.curve = words[2] == "auc" ? Curve::roc : Curve::pr,
                       .num_thresholds = points > 0 ? points : 200,
                       .average = average,
                       .multi_label = multi_label,
                       .from_logits = from_logits});
}

/// By name, and those of the table that have options.
Metric metric_of(const std::string& name) {
  if (auto curve = curve_of(name)) return *curve;
  const std::map<std::string, std::function<Metric()>> known{
      {"precision_of_2", [] { return metrics::precision({.only = 2}); }},
      {"recall_of_2", [] { return metrics::recall({.only = 2}); }},
      {"f1_of_2", [] { return metrics::f1({.only = 2}); }},
      {"precision above 0.3", [] { return metrics::precision({.threshold = 0.3}); }},
      {"recall above 0.3", [] { return metrics::recall({.threshold = 0.3}); }},
      {"f1 above 0.3", [] { return metrics::f1({.threshold = 0.3}); }},
      {"confusion_matrix above 0.3", [] { return metrics::confusion_matrix({.threshold = 0.3}); }},
      {"binary_accuracy above 0.3", [] { return metrics::binary_accuracy({.threshold = 0.3}); }},
      {"binary_accuracy of logits", [] { return metrics::binary_accuracy({.from_logits = true}); }},
      {"f1 of logits above 0.3",
       [] { return metrics::f1({.threshold = 0.3, .from_logits = true}); }},
      {"perplexity of logits", [] { return metrics::perplexity({.from_logits = true}); }},
      {"iou_of_2", [] { return metrics::iou({.only = 2}); }},
      {"f_beta_2_of_2", [] { return metrics::f_beta(2, {.only = 2}); }},
      {"true_positives_of_2", [] { return metrics::true_positives({.only = 2}); }},
      {"false_positives_of_2", [] { return metrics::false_positives({.only = 2}); }},
      {"true_negatives_of_2", [] { return metrics::true_negatives({.only = 2}); }},
      {"false_negatives_of_2", [] { return metrics::false_negatives({.only = 2}); }},
      {"true_positives above 0.3", [] { return metrics::true_positives({.threshold = 0.3}); }},
      {"false_positives above 0.3", [] { return metrics::false_positives({.threshold = 0.3}); }},
      {"true_negatives above 0.3", [] { return metrics::true_negatives({.threshold = 0.3}); }},
      {"false_negatives above 0.3", [] { return metrics::false_negatives({.threshold = 0.3}); }},
      {"binary_iou above 0.3", [] { return metrics::binary_iou({.threshold = 0.3}); }},
  };
  const auto found = known.find(name);
  return found == known.end() ? metric_by_name(name) : found->second();
}

void expect_near(const Matrix& got, const Matrix& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t row = 0; row < got.size(); ++row)
    EXPECT_THAT(got[row], ::testing::Pointwise(DoubleNear(tolerance), expected[row]));
}

TEST(MetricsTable, AgreesWithScikitLearnAndKerasInOnePieceAndInParts) {
  const json table = json::parse(std::ifstream("tests/tables/metrics.json"));
  std::vector<std::string> met;
  for (const json& row : table.at("values")) {
    const std::string name = row.at("metric");
    const std::string place = row.at("samples").get<std::string>() + ": " + name;
    SCOPED_TRACE(place);
    const Metric metric = metric_of(name);
    met.push_back(metric.name());
    const Samples samples = samples_from(table.at("samples").at(row.at("samples")));
    const double tolerance = row.at("tolerance");
    const auto all = state_of_all(metric, samples);
    const auto parts = state_of_parts(metric, samples);
    if (metric.scalar()) {
      EXPECT_NEAR(metric.value(all), row.at("value"), tolerance);
      EXPECT_NEAR(metric.value(parts), metric.value(all), 1e-12);
    } else {
      expect_near(metric.matrix(all), row.at("matrix"), tolerance);
    }
    for (size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(parts[i], all[i], 1e-12 * std::abs(all[i]));
    const bool counts = samples.weights.empty() && !name.ends_with("error") && name != "r2_score" &&
                        !name.starts_with("map_at") && !name.starts_with("perplexity");
    if (counts) {
      EXPECT_EQ(parts, all);
    }
  }
  for (const std::string& name : metric_names()) {
    if (name != "top_5_accuracy") {
      EXPECT_THAT(met, Contains(name));
    }
  }
}

TEST(Metrics, AveragePrecisionMakesTiesOfWhatIsNearerThanABin) {
  const Samples samples{.outputs = {0.9F, 0.6F, 0.61F, 0.2F}, .labels = {1, 1, 0, 0}};
  EXPECT_DOUBLE_EQ(value_of(metrics::average_precision(), samples), (1 + 2.0 / 3) / 2);
  EXPECT_DOUBLE_EQ(value_of(metrics::average_precision({.bins = 10}), samples), (1 + 2.0 / 3) / 2);
  const Samples before{.outputs = {0.9F, 0.61F, 0.6F, 0.2F}, .labels = {1, 1, 0, 0}};
  EXPECT_DOUBLE_EQ(value_of(metrics::average_precision(), before), 1);
  EXPECT_DOUBLE_EQ(value_of(metrics::average_precision({.bins = 10}), before), (1 + 2.0 / 3) / 2);
}

TEST(Metrics, R2KeepsItsDigitsFarFromZeroAndKnowsConstants) {
  Samples samples{.outputs = {}};
  for (int i = 0; i < 1000; ++i) {
    samples.targets.push_back(4096.0F + static_cast<float>(i % 2));  // distances of 0.25
    samples.outputs.push_back(samples.targets.back() + 0.25F);
  }
  EXPECT_NEAR(value_of(metrics::r2_score(), samples), 0.75, 1e-8);
  const Samples constant{.outputs = {0.1F, 0.1F, 0.1F}, .targets = {0.1F, 0.1F, 0.1F}};
  EXPECT_EQ(value_of(metrics::r2_score(), constant), 1);
}

TEST(Metrics, AnOutputThatIsNoNumberStandsForTheWrongAnswer) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Samples binary{.outputs = {nan, nan, 0.9F, 0.1F}, .targets = {1, 0, 1, 0}};
  EXPECT_EQ(value_of(metrics::binary_accuracy(), binary), 0.5);
  EXPECT_EQ(value_of(metrics::precision(), binary), 0.5);
  EXPECT_EQ(value_of(metrics::recall(), binary), 0.5);
  EXPECT_LT(value_of(metrics::auc(), binary), 0.5);
  const Samples classes{.outputs = {nan, 1, 0, 1}, .labels = {1, 1}, .width = 2};
  EXPECT_EQ(value_of(metrics::recall({.only = 1}), classes), 0.5);
  EXPECT_EQ(value_of(metrics::precision({.only = 1}), classes), 1);
  EXPECT_EQ(value_of(metrics::map_at_k(), classes), 0.75);  // it stands before the label's
  const Metric matrix = metrics::confusion_matrix();
  EXPECT_THAT(matrix.matrix(state_of_all(matrix, classes)),
              ElementsAre(ElementsAre(0, 0), ElementsAre(0, 1)));
  const Samples line{.outputs = {nan, 1}, .targets = {1, 1}};
  EXPECT_TRUE(std::isnan(value_of(metrics::mean_squared_error(), line)));
}

TEST(Metrics, ClassesWithoutAnAreaAreLeftOutOfItsMean) {
  // Class 2 is no sample's; class 0 is right, class 1 as wrong as can be.
  const Samples three{.outputs = {0.9F, 0.1F, 0, 0.2F, 0.05F, 0.75F}, .labels = {0, 1}, .width = 3};
  EXPECT_EQ(value_of(metrics::auc(), three), 0.5);
  EXPECT_EQ(value_of(metrics::average_precision(), three), (1 + 0.5) / 2);
  const Samples of_one{.outputs = {0.9F, 0.1F}, .labels = {0}, .width = 2};
  EXPECT_EQ(value_of(metrics::auc(), of_one), 0);  // no samples of others
  EXPECT_EQ(value_of(metrics::average_precision(), of_one), 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Samples bad{.outputs = {nan, 1, 0, 1}, .labels = {0, 1}, .width = 2};
  EXPECT_EQ(value_of(metrics::auc({.from_logits = true}), bad), 0);  // a row that is all wrong
}

TEST(Metrics, NoSamplesGiveNoNumberButZero) {
  for (const std::string& name : metric_names()) {
    const Metric metric = metric_by_name(name);
    const std::vector<double> none(static_cast<size_t>(metric.num_states(4)));
    if (metric.scalar()) {
      EXPECT_EQ(metric.value(none), 0) << name;
    }
  }
}

TEST(Metrics, AreFoundByName) {
  EXPECT_EQ(metric_by_name("top_7_accuracy").name(), "top_7_accuracy");
  EXPECT_EQ(metric_by_name("map_at_12").name(), "map_at_12");
  EXPECT_EQ(metric_by_name("weighted_f_beta_0.5").name(), "weighted_f_beta_0.5");
  for (const char* wrong :
       {"acuracy", "top__accuracy", "top_x_accuracy", "map_at_", "map_at_3x", "f_beta_x"})
    EXPECT_THAT(message_of<UsageError>([&] { metric_by_name(wrong); }),
                HasSubstr("unknown metric"));
  EXPECT_THAT(message_of<UsageError>([] { metric_by_name("acuracy"); }),
              AllOf(HasSubstr("did you mean \"accuracy\""), HasSubstr("r2_score")));
  EXPECT_THAT(message_of<UsageError>([] { metric_by_name("map_at_0"); }), HasSubstr("k is 0"));
}

TEST(Metrics, OneMetricHasOneName) {
  EXPECT_THAT(
      message_of<UsageError>([] { metric_by_name("weighted_f_beta_2.0"); }),
      AllOf(HasSubstr("metric \"weighted_f_beta_2.0\""), HasSubstr("\"weighted_f_beta_2\"")));
  for (const char* other : {"f_beta_2.0", "f_beta_5e-1", "top_05_accuracy", "map_at_03"})
    EXPECT_THAT(message_of<UsageError>([&] { metric_by_name(other); }),
                HasSubstr("another way to write"));
  for (const std::string& name : metric_names()) EXPECT_EQ(metric_by_name(name).name(), name);
}

TEST(Metrics, AreBetterWhenHigherByWholeWordsOfTheirNames) {
  for (const char* higher :
       {"accuracy", "val_accuracy", "top_5_accuracy", "kind_accuracy", "auc", "weighted_pr_auc",
        "f1", "micro_f1", "f1_of_2", "f_beta_2", "map_at_3", "r2_score", "iou", "binary_iou",
        "average_precision", "recall.90", "true_positives_of_1", "val_true_negatives"})
    EXPECT_TRUE(higher_is_better(Better::by_name, higher)) << higher;
  for (const char* lower : {"loss", "val_loss", "score_loss", "mean_absolute_error", "perplexity",
                            "previous_perplexity", "auction_price", "various_false_positives",
                            "false_negatives", "recall_false_positives", "underscored", "f12"})
    EXPECT_FALSE(higher_is_better(Better::by_name, lower)) << lower;
}

TEST(Metrics, MayBeNamedAnew) {
  const Metric strict = metrics::recall({.threshold = 0.9}).named("recall_90");
  EXPECT_EQ(strict.name(), "recall_90");
  EXPECT_EQ(value_of(strict, {.outputs = {0.95F, 0.5F}, .labels = {1, 1}}), 0.5);
}

TEST(Metrics, OptionsOutOfRangeAreErrors) {
  const auto message = [](const std::function<Metric()>& make) {
    return message_of<UsageError>(make);
  };
  EXPECT_THAT(message([] { return metrics::map_at_k(0); }), HasSubstr("map_at_k: k is 0"));
  EXPECT_THAT(message([] { return metrics::auc({.num_thresholds = 1}); }),
              HasSubstr("metric auc: num_thresholds is 1, must be 2 to 1000000"));
  EXPECT_THAT(message([] { return metrics::average_precision({.bins = 0}); }),
              HasSubstr("bins is 0"));
  EXPECT_THAT(message([] { return metrics::precision({.only = -2}); }), HasSubstr("class -2"));
  EXPECT_THAT(message([] { return metrics::f1({.threshold = 1, .from_logits = true}); }),
              HasSubstr("threshold is 1, must be between 0 and 1"));
  EXPECT_THAT(message([] { return metrics::true_negatives({.only = -2}); }), HasSubstr("class -2"));
  for (const double beta : {0.0, -1.0, 1e7, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THAT(message([&] { return metrics::f_beta(beta); }), HasSubstr("f_beta: beta is"));
  EXPECT_THAT(message([] { return metric_by_name("f_beta_0"); }), HasSubstr("beta is 0"));
  EXPECT_THAT(message([] { return Metric(MetricDefinition{.name = "mine"}); }),
              HasSubstr("metric mine: needs num_states"));
}

TEST(Metrics, SamplesThatDoNotFitAreErrors) {
  const Samples classes{.outputs = {1, 2, 3}, .labels = {1}, .width = 3};
  const Samples one_hot{.outputs = {1, 2, 3}, .targets = {0, 1, 0}, .width = 3};
  const Samples binary{.outputs = {0.5F}, .labels = {1}};
  const struct {
    Metric metric;
    Samples samples;
    const char* words;
  } cases[] = {
      {metrics::accuracy(), one_hot, "metric accuracy: needs int64 labels, one a sample; got 3"},
      {metrics::accuracy(), {.outputs = {1}}, "got targets of another kind"},
      {metrics::map_at_k(), one_hot, "metric map_at_3: needs int64 labels"},
      {metrics::f1(), one_hot, "metric f1: needs int64 labels"},
      {metrics::categorical_accuracy(), classes, "3 a sample; got no floats"},
      {metrics::r2_score(), {.outputs = {1, 2}, .targets = {1}, .width = 2}, "2 a sample; got 1"},
      {metrics::mean_absolute_error(), binary, "got no floats"},
      {metrics::auc(), one_hot, "metric auc: of 3 outputs a sample needs int64 labels"},
      {metrics::auc(), one_hot, "with .multi_label, as many float targets of 0 or 1; got 3 floats"},
      {metrics::auc({.multi_label = true}), classes, "as many float targets as outputs, 3"},
      {metrics::true_positives(), classes, "needs a target of 0 or 1 for each of the 3 outputs"},
      {metrics::binary_iou(), classes, "got labels: for them there are confusion_matrix and iou"},
      {metrics::true_positives({.only = 3}), classes, "positives_of_3: class 3, but the model"},
      {metrics::false_negatives({.only = 0}), binary,
       "of_0: class 0, but the model gives 1 output"},
      {metrics::true_negatives({.only = 0}), one_hot, "metric true_negatives_of_0: needs int64"},
      {metrics::average_precision(), {.outputs = {0}, .targets = {0, 1}}, "1 a sample; got 2"},
      {metrics::recall({.only = 3}), classes, "recall_of_3: class 3, but the model gives 3"},
      {metrics::recall({.only = 0}), binary, "recall_of_0: class 0, but the model gives 1"},
  };
  for (const auto& c : cases)
    EXPECT_THAT(message_of<UsageError>([&] { state_of_all(c.metric, c.samples); }),
                HasSubstr(c.words));
  const struct {
    Metric metric;
    Samples samples;
    const char* words;
  } bad_values[] = {
      {metrics::confusion_matrix(), {.outputs = {1, 2}, .labels = {2}, .width = 2}, "label 2"},
      {metrics::accuracy(), binary,
       "label 1, but the model gives 1 output; of one output there is"},
      {metrics::precision(), {.outputs = {1}, .labels = {2}}, "label 2, expected 0 or 1"},
      {metrics::binary_accuracy(), {.outputs = {1}, .targets = {0.5F}}, "target 0.5"},
      {metrics::auc(), {.outputs = {1.5F}, .targets = {1}}, "set from_logits"},
      {metrics::average_precision(), classes, "output 2, expected 0 to 1"},
      {metrics::auc(), {.outputs = {1, 0}, .labels = {2}, .width = 2}, "label 2"},
      {metrics::binary_iou(), {.outputs = {1, 1}, .targets = {0, 2}, .width = 2}, "target 2"},
      {metrics::categorical_accuracy(),
       {.outputs = {1}, .targets = {std::numeric_limits<float>::quiet_NaN()}},
       "not a number"},
  };
  for (const auto& c : bad_values)
    EXPECT_THAT(message_of<DataError>([&] { state_of_all(c.metric, c.samples); }),
                HasSubstr(c.words));
}

TEST(Metrics, AStateOfAnotherWidthIsAnError) {
  const Metric metric = metrics::confusion_matrix();
  std::array<double, 4> state{};
  EXPECT_THAT(message_of<UsageError>([&] {
                metric.add(Samples{.outputs = {1, 2, 3}, .labels = {1}, .width = 3}.rows(0, 1),
                           state);
              }),
              HasSubstr("got 4 states for outputs of width 3, expected 9"));
  EXPECT_THROW(metric.value(state), UsageError);
  EXPECT_THROW(metrics::accuracy().matrix(state), UsageError);
}

}  // namespace
}  // namespace tutti
