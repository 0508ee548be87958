// Metrics, History and Progress: what needs no tensors.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "tutti/train/metrics/metrics.h"
#include "tutti/train/report/history.h"
#include "tutti/train/report/progress.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

MetricSum measure(const Metric& metric, const std::vector<float>& outputs,
                  const std::vector<int64_t>& labels) {
  std::array<double, 2> state{};
  const auto rows = static_cast<int64_t>(labels.size());
  metric.add({outputs.data(), labels.data(), rows,
              static_cast<int64_t>(outputs.size()) / std::max<int64_t>(1, rows)},
             state);
  return {state[0], state[1]};
}

/// Slow and obvious: sort the classes by output, first index first among equals, look for the
/// label.
bool among_largest(const float* outputs, int64_t width, int64_t label, int k) {
  std::vector<int64_t> order(static_cast<size_t>(width));
  for (int64_t c = 0; c < width; ++c) order[static_cast<size_t>(c)] = c;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return outputs[a] > outputs[b]; });
  return std::find(order.begin(), order.begin() + std::min<int64_t>(k, width), label) !=
         order.begin() + std::min<int64_t>(k, width);
}

TEST(Metrics, TopKAgreesWithSorting) {
  std::mt19937 random(1);
  for (int k : {1, 2, 5, 40}) {
    const Metric metric = k == 1 ? metrics::accuracy() : metrics::top_k_accuracy(k);
    std::vector<float> outputs;
    std::vector<int64_t> labels;
    int64_t right = 0;
    for (int row = 0; row < 200; ++row) {
      // Small integers, so that equal outputs are common.
      for (int c = 0; c < 7; ++c) outputs.push_back(static_cast<float>(random() % 5));
      labels.push_back(static_cast<int64_t>(random() % 7));
      right += among_largest(&outputs[static_cast<size_t>(row) * 7], 7, labels.back(), k);
    }
    const MetricSum sum = measure(metric, outputs, labels);
    EXPECT_EQ(sum.count, 200);
    EXPECT_EQ(sum.sum, static_cast<double>(right)) << k;
  }
}

TEST(Metrics, PartsAddUpToTheWhole) {
  const std::vector<float> outputs{1, 2, 3, 0, 5, 4, 9, 9};
  const std::vector<int64_t> labels{1, 0, 0, 0};
  const auto whole = measure(metrics::accuracy(), outputs, labels);
  std::array<double, 2> parts{};
  metrics::accuracy().add({outputs.data(), labels.data(), 1, 2}, parts);
  metrics::accuracy().add({outputs.data() + 2, labels.data() + 1, 3, 2}, parts);
  metrics::accuracy().add({outputs.data(), labels.data(), 0, 0}, parts);
  EXPECT_THAT(parts, ElementsAre(whole.sum, whole.count));
  EXPECT_DOUBLE_EQ(whole.value(), 1.0);
  EXPECT_EQ(MetricSum{}.value(), 0);
}

TEST(Metrics, NotANumberIsNeverRight) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(measure(metrics::accuracy(), {nan, nan}, {0}).sum, 0);
  EXPECT_EQ(measure(metrics::accuracy(), {nan, 1}, {1}).sum, 0);
  EXPECT_EQ(measure(metrics::accuracy(), {1, nan}, {0}).sum, 0);
  EXPECT_EQ(measure(metrics::top_k_accuracy(2), {nan, 1}, {0}).sum, 0);
}

TEST(Metrics, BadLabelsAndNumbersAreErrors) {
  EXPECT_THROW(measure(metrics::accuracy(), {1, 2}, {2}), DataError);
  EXPECT_THROW(measure(metrics::accuracy(), {1, 2}, {-1}), DataError);
  EXPECT_THROW(metrics::top_k_accuracy(0), UsageError);
  std::array<double, 2> state{};
  const float outputs[] = {1, 2};
  EXPECT_THROW(metrics::accuracy().add({outputs, nullptr, 1, 2}, state), UsageError);
  EXPECT_EQ(metrics::top_k_accuracy(3).name(), "top_3_accuracy");
}

History two_epochs() {
  History history;
  history.columns = {"train_loss", "accuracy", "images_per_second"};
  history.rows = {{0.5, 0.75, 1234.5}, {0.1, 0.875, 2345.5}};
  history.images = 300;
  history.train_seconds = 1.5;
  return history;
}

TEST(History, IsATableAndACsv) {
  const History history = two_epochs();
  EXPECT_EQ(history.to_csv(),
            "epoch,train_loss,accuracy,images_per_second\n"
            "1,0.5,0.75,1234.5\n"
            "2,0.1,0.875,2345.5\n");
  EXPECT_EQ(history.to_string(),
            "epoch  train_loss    accuracy  images_per_second\n"
            "    1      0.5000      0.7500               1234\n"
            "    2      0.1000      0.8750               2346\n");
  EXPECT_THAT(history.column("train_loss"), ElementsAre(0.5, 0.1));
  EXPECT_EQ(history.last("accuracy"), 0.875);
  EXPECT_EQ(history.images_per_second(), 200);
  EXPECT_THROW(history.column("train_los"), UsageError);
  EXPECT_THROW(History{}.last("train_loss"), UsageError);
  EXPECT_EQ(History{}.images_per_second(), 0);
}

TEST(History, SavesTheCsvWhole) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "tutti_history_test.csv";
  two_epochs().save_csv(path);
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text, two_epochs().to_csv());
  std::filesystem::remove(path);
  EXPECT_THROW(two_epochs().save_csv("/no/such/folder/history.csv"), Error);
}

TEST(History, PercentilesAreOfTheSortedSteps) {
  History history;
  EXPECT_EQ(history.step_ms_percentile(0.5), 0);
  for (int i = 100; i >= 0; --i) history.step_ms.push_back(static_cast<float>(i));
  EXPECT_EQ(history.step_ms_percentile(0), 0);
  EXPECT_EQ(history.step_ms_percentile(0.5), 50);
  EXPECT_EQ(history.step_ms_percentile(0.99), 99);
  EXPECT_EQ(history.step_ms_percentile(1), 100);
}

/// What a Progress wrote to a file that is no terminal.
class Written {
 public:
  Written() : file_(std::tmpfile()) {}
  ~Written() { std::fclose(file_); }
  std::FILE* file() const { return file_; }
  std::string text() const {
    std::string all(1 << 12, '\0');
    std::rewind(file_);
    all.resize(std::fread(all.data(), 1, all.size(), file_));
    return all;
  }

 private:
  std::FILE* file_;
};

TEST(Progress, WritesALineEveryFiveSecondsAndOneAnEpoch) {
  const Written out;
  const TimePoint start{};
  Progress progress(Verbose::automatic, 3, out.file());
  EXPECT_FALSE(progress.due(start));
  progress.begin_epoch(1, 100, start);
  EXPECT_FALSE(progress.due(start + Millis{4'999}));
  ASSERT_TRUE(progress.due(start + Millis{5'000}));
  progress.show(20, 30'000, {{"loss", 0.5}, {"accuracy", 0.75}}, start + Millis{5'000});
  EXPECT_FALSE(progress.due(start + Millis{9'999}));
  progress.end_epoch({{"loss", 0.25}}, 12.5, 8000);
  EXPECT_EQ(out.text(),
            "epoch 2/3  step 20/100  loss 0.5000  accuracy 0.7500  6,000 images/s  0:20 left\n"
            "epoch 2/3  loss 0.2500  12.50 s  8,000 images/s\n");
  EXPECT_THAT(out.text(), Not(HasSubstr("\r")));
}

/// A terminal of so many columns; 0: it does not know.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0) throw Error("no terminal");
    out_ = fdopen(open(ptsname(master_), O_WRONLY | O_NOCTTY), "w");
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    if (out_ == nullptr || ioctl(master_, TIOCSWINSZ, &size) != 0) throw Error("no terminal");
  }
  ~Terminal() {
    std::fclose(out_);
    close(master_);
  }
  std::FILE* out() const { return out_; }
  /// What was written since the last call: it comes in pieces, up to the mark behind it.
  std::string text() const {
    if (write(fileno(out_), "\x1e", 1) != 1) throw Error("no terminal");
    std::string all;
    for (char got = 0; read(master_, &got, 1) == 1 && got != '\x1e';) all += got;
    return all;
  }

 private:
  int master_;
  std::FILE* out_ = nullptr;
};

TEST(Progress, ABarStaysOnOneRowOfTheTerminal) {
  const NamedValues values{{"loss", 0.5}, {"accuracy", 0.75}, {"top_5_accuracy", 0.875}};
  const struct {
    unsigned short columns;
    const char* line;
  } cases[] = {
      {200,
       "epoch 2/3  [====                ]  step 20/100  loss 0.5000  accuracy 0.7500  "
       "top_5_accuracy 0.8750  6,000 images/s  0:20 left"},
      {120,
       "epoch 2/3  [==           ]  step 20/100  loss 0.5000  accuracy 0.7500  top_5_accuracy "
       "0.8750  6,000 images/s  0:20 left"},
      {100,
       "epoch 2/3  step 20/100  loss 0.5000  accuracy 0.7500  top_5_accuracy 0.8750  6,000 "
       "images/s  0:20 l"},
      {0, "epoch 2/3  step 20/100  loss 0.5000  accuracy 0.7500  top_5_accuracy 0.8750  6,"},
      {20, "epoch 2/3  step 20/"},
  };
  for (const auto& c : cases) {
    const Terminal terminal(c.columns);
    Progress progress(Verbose::automatic, 3, terminal.out());
    progress.begin_epoch(1, 100, TimePoint{});
    progress.show(20, 30'000, values, TimePoint{} + Millis{5'000});
    EXPECT_EQ(terminal.text(), c.line);
    EXPECT_LT(std::string(c.line).size(), c.columns == 0 ? 80U : c.columns);
    progress.end_epoch({{"loss", 0.25}}, 12.5, 8000);
    EXPECT_EQ(terminal.text(), "\r\x1b[Kepoch 2/3  loss 0.2500  12.50 s  8,000 images/s\r\n");
  }
}

TEST(EvaluationBar, ShowsTheFirstBatchThenWhatIsDueAndGoes) {
  const Terminal terminal(80);
  const TimePoint start{};
  {
    EvaluationBar bar(true, start, terminal.out());
    EXPECT_EQ(terminal.text(), "");
    bar.show(1, 4, 500, start + Millis{500});
    EXPECT_EQ(terminal.text(),
              "evaluate  [=====               ]  batch 1/4  1,000 samples/s  0:02 left");
    bar.show(2, 4, 1000, start + Millis{599});
    EXPECT_EQ(terminal.text(), "") << "not due";
    bar.show(3, 4, 1500, start + Millis{1'000});
    EXPECT_EQ(terminal.text(),
              "\r\x1b[Kevaluate  [===============     ]  batch 3/4  1,500 samples/s  0:00 left");
  }
  EXPECT_EQ(terminal.text(), "\r\x1b[K");
}

TEST(EvaluationBar, IsForTerminalsAloneAndWhenWanted) {
  const Terminal terminal(80);
  const Written written;
  for (const auto& [wanted, out] :
       {std::pair{false, terminal.out()}, std::pair{true, written.file()}}) {
    EvaluationBar bar(wanted, TimePoint{}, out);
    bar.show(1, 4, 500, TimePoint{} + Millis{500});
  }
  EXPECT_EQ(terminal.text() + written.text(), "");
}

TEST(Progress, IsSilentWhenTold) {
  const Written silent;
  const Written epochs;
  for (const auto& [verbose, out] :
       {std::pair{Verbose::silent, &silent}, std::pair{Verbose::epochs, &epochs}}) {
    Progress progress(verbose, 1, out->file());
    progress.begin_epoch(0, 10, TimePoint{});
    EXPECT_FALSE(progress.due(TimePoint{} + std::chrono::hours{1}));
    progress.end_epoch({{"loss", 1}}, 1, 1);
  }
  EXPECT_EQ(silent.text(), "");
  EXPECT_EQ(epochs.text(), "epoch 1/1  loss 1.0000  1.00 s  1 images/s\n");
}

TEST(Progress, WordsForNumbersAndTimes) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999.4), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(with_commas(-123456), "-123,456");
  EXPECT_EQ(clock_words(-1), "0:00");
  EXPECT_EQ(clock_words(42.4), "0:42");
  EXPECT_EQ(clock_words(187), "3:07");
  EXPECT_EQ(clock_words(3723), "1:02:03");
}

}  // namespace
}  // namespace tutti
