// Linear regression on a table: columns by name, words one-hot, the error in the target's own unit.
#include <tutti/data.h>
#include <tutti/train.h>

#include <cstdio>
#include <string>

namespace data = tutti::data;

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);  // --strategy mirrored --replicas 2
  const std::string file = argc > 1 ? argv[1] : "housing.csv";
  const std::string target = argc > 2 ? argv[2] : "median_house_value";

  // One of five rows is held out, drawn at random, as rows often stand in some order. The spec has
  // kinds and words of the columns, and means and deviations of the other four: what reads another
  // file alike.
  const auto [spec, train, held_out] =
      data::csv_halves(file, {.target = target, .standardise = true, .standardise_target = true},
                       {.share = 0.2, .seed = 1});

  const int64_t width = spec.width();
  tutti::Model model(strategy, [=] { return tutti::models::linear_regression(width); });
  model.compile({.optimizer = tutti::optim::adam({.learning_rate = 1e-2}),
                 .loss = tutti::losses::mean_squared_error(),
                 .metrics = {tutti::metrics::mean_absolute_error()}});
  const auto history =
      model.fit(train.shuffle().batch(64), {.epochs = 40, .validation = held_out.batch(256)});
  if (!strategy.world().chief) return 0;
  std::printf("%s\n%s off by %.6g on the mean\n", spec.to_string().c_str(), target.c_str(),
              history.last("val_mean_absolute_error") * spec.target->deviation);
}
