// Who likes which film: matrix factorisation whose embeddings may live on parameter servers.
#include <tutti/tutti.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace {

// Ratings as [user, film] and stars. Every tenth is kept for the test.
struct Ratings {
  std::vector<int64_t> keys;
  std::vector<float> stars;

  tutti::data::Dataset dataset() const {
    const auto count = static_cast<int64_t>(stars.size());
    return tutti::data::from_arrays(
        {tutti::data::array_of(keys, {count, 2}), tutti::data::array_of(stars, {count, 1})});
  }
};

std::pair<Ratings, Ratings> read_ratings(const std::string& folder) {
  std::ifstream file(folder + "/ratings.csv");
  if (!file) throw tutti::DataError(folder + "/ratings.csv cannot be read");
  Ratings train, test;
  std::string line;
  std::getline(file, line);  // names of columns
  for (int64_t number = 0; std::getline(file, line); ++number) {
    long long user = 0, film = 0;
    float stars = 0;
    if (std::sscanf(line.c_str(), "%lld,%lld,%f", &user, &film, &stars) != 3)
      throw tutti::DataError(folder + "/ratings.csv: \"" + line + "\" is no rating");
    Ratings& to = number % 10 == 3 ? test : train;
    to.keys.insert(to.keys.end(), {user, film});
    to.stars.push_back(stars);
  }
  return {std::move(train), std::move(test)};
}

// stars = mean + a user's bias + a film's + how well their tastes agree. A row holds tastes, then
// the bias. Koren, Bell & Volinsky 2009, doi:10.1109/MC.2009.263.
struct FactorisationImpl : torch::nn::Module {
  FactorisationImpl() {
    mean = register_parameter("mean", torch::full({1}, 3.5));
    users = register_module("users", tutti::nn::SparseEmbedding({.name = "user", .width = 17}));
    films = register_module("films", tutti::nn::SparseEmbedding({.name = "film", .width = 17}));
  }
  at::Tensor forward(const at::Tensor& keys) {
    const at::Tensor user = users(keys.select(1, 0)), film = films(keys.select(1, 1));
    const at::Tensor agree = (user.narrow(1, 0, 16) * film.narrow(1, 0, 16)).sum(1, true);
    return mean + user.narrow(1, 16, 1) + film.narrow(1, 16, 1) + agree;
  }

  at::Tensor mean;
  tutti::nn::SparseEmbedding users{nullptr}, films{nullptr};
};
TORCH_MODULE(Factorisation);

}  // namespace

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);
  const std::string folder = argc > 1 ? argv[1] : "movielens-small";
  const int epochs = argc > 2 ? std::stoi(argv[2]) : 8;
  const std::string checkpoints = argc > 3 ? argv[3] : "";  // a folder: goes on where it was
  try {
    const auto [train, test] = read_ratings(folder);
    tutti::Model model(strategy, [] { return Factorisation(); });
    model.compile({.optimizer = tutti::optim::adagrad({.learning_rate = 0.1, .weight_decay = 1e-3}),
                   .loss = tutti::losses::mean_squared_error()});
    model.fit(train.dataset().shuffle().batch(512),
              {.epochs = epochs,
               .verbose = 2,
               .checkpoints = {.folder = checkpoints, .every_steps = 20, .resume = true}});
    const double error = std::sqrt(model.evaluate(test.dataset().batch(4096)).loss);
    if (strategy.world().chief) std::printf("test rmse %.17g\n", error);
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return dynamic_cast<const tutti::UsageError*>(&error) != nullptr ? 2 : 1;
  }
}
