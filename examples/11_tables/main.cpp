// Linear regression on a table: columns by name, words one-hot, the error in the target's own unit.
#include <tutti/tutti.h>

#include <cstdio>
#include <string>

namespace data = tutti::data;

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);  // --strategy mirrored --replicas 2
  const std::string file = argc > 1 ? argv[1] : "housing.csv";
  const std::string target = argc > 2 ? argv[2] : "median_house_value";

  // Kinds, words, means and deviations of the columns: what reads another file alike.
  const auto spec = data::table_spec(file, {.target = target,
                                            .missing_numbers = data::MissingNumbers::mean,
                                            .standardise = true,
                                            .standardise_target = true});
  // Mixed first, as rows often stand in some order; one of five is held out.
  const auto rows = data::csv(file, spec).shuffle({.seed = 1, .each_epoch = false});
  const int64_t kept = rows.num_samples() * 4 / 5;
  const auto train = rows.take(kept).shuffle().batch(64);
  const auto held_out = rows.skip(kept).batch(256);

  tutti::Model model(strategy, [&] { return tutti::models::linear_regression(spec.width()); });
  model.compile({.optimizer = tutti::optim::adam({.learning_rate = 1e-2}),
                 .loss = tutti::losses::mean_squared_error(),
                 .metrics = {tutti::metrics::mean_absolute_error()}});
  const auto history = model.fit(train, {.epochs = 40, .validation = held_out});
  if (!strategy.world().chief) return 0;
  std::printf("%s\n%s off by %.6g on the mean\n", spec.to_string().c_str(), target.c_str(),
              history.last("val_mean_absolute_error") * spec.target->deviation);
}
