// Who earns more than 50,000 dollars: wide and deep (Cheng et al. 2016, arXiv:1606.07792) in a loop
// of one's own, with embeddings that may live on parameter servers.
#include <tutti/tutti.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr std::array kNumbers = {0, 2, 4, 10, 11, 12};    // columns of adult.data
constexpr std::array kWords = {1, 3, 5, 6, 7, 8, 9, 13};  // of which each value is a key
constexpr std::array<std::array<int, 2>, 3> kPairs = {{{3, 6}, {5, 7}, {6, 13}}};  // wide alone
constexpr std::array kMeans = {38.6F, 189778.0F, 10.1F, 1078.0F, 87.3F, 40.4F};
constexpr std::array kSpreads = {13.6F, 105550.0F, 2.57F, 7385.0F, 403.0F, 12.3F};
constexpr int64_t kDeep = kWords.size(), kWide = kWords.size() + kPairs.size();

// A key of its own for each text: FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/.
int64_t key_of(const std::string& text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3;
  return static_cast<int64_t>(hash);
}

struct People {
  std::vector<int64_t> keys;   // [people, kWide], the first kDeep of them for deep, too
  std::vector<float> numbers;  // [people, 6], about 0 and of about 1
  std::vector<float> rich;     // [people]

  int64_t size() const { return static_cast<int64_t>(rich.size()); }
  void add(const std::vector<std::string>& fields) {
    for (size_t i = 0; i < kNumbers.size(); ++i)
      numbers.push_back((std::stof(fields[kNumbers[i]]) - kMeans[i]) / kSpreads[i]);
    for (const int column : kWords) keys.push_back(key_of(std::to_string(column) + fields[column]));
    for (const auto& [a, b] : kPairs)
      keys.push_back(key_of(std::to_string(a) + fields[a] + std::to_string(b) + fields[b]));
    rich.push_back(fields[14] == ">50K" ? 1.0F : 0.0F);
  }
  tutti::data::Dataset dataset() const {
    return tutti::data::from_arrays({tutti::data::array_of(keys, {size(), kWide}),
                                     tutti::data::array_of(numbers, {size(), 6}),
                                     tutti::data::array_of(rich, {size()})});
  }
};

// Every fifth is kept for the test.
std::pair<People, People> read_people(const std::string& folder) {
  std::ifstream file(folder + "/adult.data");
  if (!file) throw tutti::DataError(folder + "/adult.data cannot be read");
  People train, test;
  std::string line;
  for (int64_t number = 0; std::getline(file, line) && !line.empty(); ++number) {
    std::vector<std::string> fields;
    std::istringstream words(line);
    for (std::string field; std::getline(words >> std::ws, field, ',');) fields.push_back(field);
    if (fields.size() != 15)
      throw tutti::DataError(folder + "/adult.data: \"" + line + "\" has not 15 fields");
    (number % 5 == 2 ? test : train).add(fields);
  }
  return {std::move(train), std::move(test)};
}

struct WideAndDeepImpl : torch::nn::Module {
  WideAndDeepImpl() {
    wide = register_module("wide",
                           tutti::nn::SparseEmbedding(
                               {.name = "wide", .width = 1, .initializer = tutti::ps::ZeroRows{}}));
    words = register_module("words", tutti::nn::SparseEmbedding({.name = "words", .width = 8}));
    deep =
        register_module("deep", torch::nn::Sequential(torch::nn::Linear(kDeep * 8 + 6, 32),
                                                      torch::nn::ReLU(), torch::nn::Linear(32, 1)));
  }
  // Log odds, [people].
  at::Tensor forward(const at::Tensor& keys, const at::Tensor& numbers) {
    const at::Tensor embedded = words(keys.narrow(1, 0, kDeep)).flatten(1);
    return wide(keys).sum({1, 2}) + deep->forward(torch::cat({embedded, numbers}, 1)).squeeze(1);
  }

  tutti::nn::SparseEmbedding wide{nullptr}, words{nullptr};
  torch::nn::Sequential deep{nullptr};
};
TORCH_MODULE(WideAndDeep);

// The chance that a rich one gets higher odds than another: Mann & Whitney 1947.
double area_under_curve(const at::Tensor& odds, const at::Tensor& rich) {
  const at::Tensor ranks = odds.argsort(/*stable=*/true, 0).argsort().to(torch::kDouble) + 1;
  const double ones = rich.sum().item<double>();
  const double zeros = static_cast<double>(rich.numel()) - ones;
  return ((ranks * rich).sum().item<double>() - ones * (ones + 1) / 2) / (ones * zeros);
}

void train_and_test(tutti::Strategy strategy, const std::string& folder, int epochs) {
  const auto [train, test] = read_people(folder);
  tutti::Replicated<WideAndDeep> net(strategy, [] { return WideAndDeep(); });
  tutti::Optimizer optimizer(net, tutti::optim::adagrad({.learning_rate = 0.05}));
  auto data = strategy.distribute(train.dataset().shuffle().batch(256));
  for (int epoch = 0; epoch < epochs; ++epoch)
    for (auto&& batch : data.epoch(epoch))
      strategy.run([&](tutti::ReplicaContext& replica) {
        const auto columns = batch.columns(replica);
        const auto odds = net.local(replica)->forward(columns[0], columns[1]);
        const auto each =
            torch::binary_cross_entropy_with_logits(odds, columns[2], {}, {}, at::Reduction::None);
        optimizer.minimize(replica, each, batch.global_size());
      });
  if (auto* const late = optimizer.updater().parts().late)
    late->refresh();  // asynchronous: what the other workers have done since
  if (!strategy.world().chief) return;
  const torch::NoGradGuard no_grad;  // the rows of unknown keys are read, not made
  const auto all = test.dataset().batch(test.size()).epoch({}).batch(0);
  const auto model = net.modules().module(0);
  const at::Tensor odds = std::dynamic_pointer_cast<WideAndDeepImpl>(model)->forward(
      tutti::tensor_of(all.columns[0]), tutti::tensor_of(all.columns[1]));
  const at::Tensor rich = tutti::tensor_of(all.columns[2]);
  const double right =
      ((odds > 0).to(torch::kFloat) == rich).to(torch::kDouble).mean().item<double>();
  std::printf("test accuracy %.17g auc %.17g\n", right, area_under_curve(odds, rich));
}

}  // namespace

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);
  try {
    train_and_test(strategy, argc > 1 ? argv[1] : "adult", argc > 2 ? std::stoi(argv[2]) : 3);
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return dynamic_cast<const tutti::UsageError*>(&error) != nullptr ? 2 : 1;
  }
}
