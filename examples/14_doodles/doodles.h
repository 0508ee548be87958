// What both programs of this example have in common: the drawings, and two networks for them.
#pragma once

#include <tutti/tutti.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace doodles {

namespace data = tutti::data;
namespace transforms = tutti::data::transforms;

constexpr int64_t kPoints = 64;  // of a drawing that the stroke network sees
constexpr int64_t kSide = 28;    // of a bitmap, in pixels

// "bitmap" or "stroke", a folder, and for how long.
struct Arguments {
  std::string network = "bitmap";
  int64_t epochs = 0;
  int64_t steps = 0;  // at most so many; 0: all
  std::string folder;

  bool strokes() const { return network == "stroke"; }
};

// A whole number that is `least` or more.
inline int64_t number_of(const char* what, std::string_view word, int64_t least) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc{} || end != word.data() + word.size() || number < least)
    throw tutti::UsageError(std::string(what) + " \"" + std::string(word) +
                            "\": expected a whole number, " + std::to_string(least) + " or more");
  return number;
}

inline Arguments arguments_of(int argc, char** argv) {
  Arguments all;
  if (argc > 1) all.network = argv[1];
  if (all.network != "bitmap" && all.network != "stroke")
    throw tutti::UsageError("network \"" + all.network + "\": expected bitmap or stroke");
  all.epochs = argc > 2 ? number_of("epochs", argv[2], 1) : all.strokes() ? 250 : 6;
  all.steps = argc > 3 ? number_of("steps", argv[3], 0) : 0;
  all.folder = argc > 4        ? argv[4]
               : all.strokes() ? "examples/data/strokes"
                               : "examples/data/quickdraw";
  return all;
}

using Point = std::array<float, data::kStrokeFields>;
using Stroke = std::vector<Point>;

inline std::vector<Stroke> strokes_of(const tutti::Array& points) {
  std::vector<Stroke> strokes;
  const auto* point = static_cast<const float*>(points.data());
  for (int64_t i = 0; i < points.shape()[0]; ++i, point += data::kStrokeFields) {
    if (i == 0 || point[data::kStrokeNumber] != strokes.back()[0][data::kStrokeNumber])
      strokes.emplace_back();
    std::copy_n(point, data::kStrokeFields, strokes.back().emplace_back().begin());
  }
  return strokes;
}

inline tutti::Array points_of(const std::vector<Stroke>& strokes) {
  std::vector<float> values;
  for (size_t number = 0; number < strokes.size(); ++number)
    for (Point point : strokes[number]) {
      point[data::kStrokeNumber] = static_cast<float>(number);
      values.insert(values.end(), point.begin(), point.end());
    }
  const auto points = static_cast<int64_t>(values.size() / data::kStrokeFields);
  return data::array_of(std::move(values), {points, data::kStrokeFields});
}

// An augmentation of one's own, since drawings are few: points are moved and left out, a stroke now
// and then is left out, drawn backwards, or before the one in front of it.
inline data::Sample redrawn(data::Sample sample, data::Draw& draw) {
  const auto strokes = strokes_of(sample.columns[0]);
  std::vector<Stroke> again;
  for (const Stroke& stroke : strokes) {
    if (strokes.size() > 2 && draw.chance(0.1) && !(again.empty() && &stroke == &strokes.back()))
      continue;
    Stroke& made = again.emplace_back();
    for (const Point& point : stroke) {
      const bool inside = &point != &stroke.front() && &point != &stroke.back();
      if (inside && stroke.size() > 4 && draw.chance(0.1)) continue;
      made.push_back(point);
      made.back()[data::kStrokeX] += static_cast<float>(3 * draw.normal());
      made.back()[data::kStrokeY] += static_cast<float>(3 * draw.normal());
    }
    if (draw.chance(0.2)) std::ranges::reverse(made);
    if (again.size() > 1 && draw.chance(0.2)) std::swap(made, again[again.size() - 2]);
  }
  sample.columns[0] = points_of(again);
  return sample;
}

struct Drawings {
  data::Dataset train, test;
};

// To test: of bitmaps the last sixth of each class, of strokes every fifth drawing.
inline Drawings drawings_of(const Arguments& arguments) {
  if (!arguments.strokes())
    return {data::quickdraw(arguments.folder, {.split = "train"}).shuffle().batch(128),
            data::quickdraw(arguments.folder, {.split = "test"}).batch(256)};
  const auto all = data::strokes(arguments.folder);
  const auto train =
      data::concatenate({all.shard(0, 5), all.shard(1, 5), all.shard(2, 5), all.shard(3, 5)});
  const auto sequence = transforms::strokes_to_sequence(kPoints);
  return {train
              .shuffle()  // another drawing in every epoch
              .map(redrawn, {.name = "redrawn", .columns = train.columns()})
              .map(transforms::random_strokes(0.35, 0.5))
              .map(sequence)
              .batch(100),
          all.shard(4, 5).map(sequence).batch(100)};
}

// Convolutions over the points of a drawing, then an LSTM in both directions; what they say of the
// points is taken at its largest and on the mean.
struct StrokeNetImpl : torch::nn::Module {
  explicit StrokeNetImpl(int64_t num_classes) {
    using torch::nn::Conv1dOptions;
    convolutions = register_module(
        "convolutions",
        torch::nn::Sequential(
            torch::nn::Conv1d(Conv1dOptions(6, 48, 5).padding(2)), torch::nn::ReLU(),
            torch::nn::Conv1d(Conv1dOptions(48, 48, 5).padding(2)), torch::nn::ReLU(),
            torch::nn::Conv1d(Conv1dOptions(48, 96, 3).padding(1)), torch::nn::ReLU()));
    lstm = register_module(
        "lstm",
        torch::nn::LSTM(torch::nn::LSTMOptions(96, 48).batch_first(true).bidirectional(true)));
    dropout = register_module("dropout", tutti::nn::Dropout(0.3));
    classes = register_module("classes", torch::nn::Linear(192, num_classes));
  }

  // [batch, points, 4]: dx, dy, pen, mask. Gives logits [batch, classes]. Beside what it is given
  // it sees where in the drawing a point lies.
  at::Tensor forward(const at::Tensor& points) {
    const auto mask = points.narrow(2, 3, 1), none = 9 * (1 - mask);
    const auto from_first = points.narrow(2, 0, 2).cumsum(1);
    const auto middle = ((from_first + none).amin(1, true) + (from_first - none).amax(1, true)) / 2;
    const auto place = 2 * (from_first - middle) * mask;
    const auto seen = torch::cat({points, place}, 2).transpose(1, 2);
    const auto said = std::get<0>(lstm(convolutions->forward(seen).transpose(1, 2) * mask)) * mask;
    const auto largest = (said - none).amax(1);
    const auto mean = said.sum(1) / mask.sum(1);
    return classes(dropout(torch::cat({largest, mean}, 1)));
  }

  torch::nn::Sequential convolutions{nullptr};
  torch::nn::LSTM lstm{nullptr};
  tutti::nn::Dropout dropout{nullptr};
  torch::nn::Linear classes{nullptr};
};
TORCH_MODULE(StrokeNet);

inline tutti::nn::Graph bitmap_net(int64_t num_classes) {
  return tutti::models::doodle_cnn({.classes = num_classes, .input = {1, kSide, kSide}});
}

// From a rate for few samples down to nearly nothing, over all steps.
inline tutti::RateSchedule rate_of(const Arguments& arguments, const data::Dataset& train) {
  const int64_t all = arguments.epochs * train.num_batches();
  return tutti::schedules::cosine({.initial = arguments.strokes() ? 3e-3 : 1.5e-3,
                                   .decay_steps = std::max<int64_t>(1, all),
                                   .alpha = 0.01});
}

// 2 for what the user can mend, as the programs of this project have it.
template <class Work>
int exit_code_of(const char* program, Work work) {
  try {
    work();
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 2;
  }
  return 0;
}

}  // namespace doodles
