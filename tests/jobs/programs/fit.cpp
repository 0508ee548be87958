#include <torch/torch.h>
#include <zlib.h>

#include <cmath>
#include <fstream>
#include <numbers>
#include <sstream>

#include "tests/jobs/programs/programs.h"

namespace tutti::test {

Learnt learnt(Model& model, const History& history) {
  const auto losses = history.column("train_loss");
  return {model.weights_sha256(), losses.front(), losses.back()};
}

namespace {

namespace fs = std::filesystem;

Array array_of(const at::Tensor& tensor) {
  const at::Tensor held = tensor.contiguous();
  return Array::view(held.data_ptr(), dtype_of(held.scalar_type()), held.sizes().vec(),
                     std::make_shared<at::Tensor>(held));
}

// ---- MNIST, from its own files ----

std::vector<uint8_t> idx_bytes(const fs::path& path, size_t header, size_t count) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) throw DataError("cannot open " + path.string());
  std::vector<uint8_t> bytes(header + count);
  const int got = gzread(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  if (got != static_cast<int>(bytes.size())) throw DataError(path.string() + " is too short");
  return {bytes.begin() + static_cast<std::ptrdiff_t>(header), bytes.end()};
}

Learnt mnist(const Strategy& strategy, const fs::path&) {
  constexpr int64_t kCount = 320;
  const auto pixels =
      idx_bytes(shared_data() / "mnist/t10k-images-idx3-ubyte.gz", 16, kCount * 28 * 28);
  const auto digits = idx_bytes(shared_data() / "mnist/t10k-labels-idx1-ubyte.gz", 8, kCount);
  std::vector<float> x(pixels.begin(), pixels.end());
  for (float& value : x) value /= 255;
  const auto train =
      data::from_arrays(
          {data::array_of(std::move(x), {kCount, 1, 28, 28}),
           data::array_of(std::vector<int64_t>(digits.begin(), digits.end()), {kCount})})
          .shuffle()
          .batch(32);
  Model model(strategy, [] {
    return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 5).stride(2)),
                                 torch::nn::ReLU(), torch::nn::Flatten(),
                                 torch::nn::Linear(8 * 12 * 12, 10));
  });
  model.compile({.optimizer = optim::adam(), .loss = losses::sparse_categorical_crossentropy()});
  return learnt(model, model.fit(train, {.epochs = 2, .verbose = 0}));
}

// ---- house prices, from a CSV file ----

at::Tensor columns_of(const fs::path& path, int64_t rows, int64_t columns) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // the header
  std::vector<float> values;
  while (std::ssize(values) < rows * columns && std::getline(file, line)) {
    std::istringstream cells(line);
    std::string cell;
    for (int64_t c = 0; c < columns && std::getline(cells, cell, ','); ++c)
      values.push_back(cell.empty() ? 0 : std::stof(cell));
  }
  return torch::tensor(values).reshape({rows, columns});
}

Learnt housing(const Strategy& strategy, const fs::path&) {
  const at::Tensor table =
      columns_of(shared_data() / "california-housing/housing_every4th.csv", 1000, 9);
  const at::Tensor x = table.narrow(1, 0, 8), y = table.narrow(1, 8, 1) / 100'000;
  const at::Tensor scaled = (x - x.mean(0)) / x.std(0);
  const auto train = data::from_arrays({array_of(scaled), array_of(y)}).shuffle().batch(50);
  Model model(strategy, [] {
    return torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::ReLU(),
                                 torch::nn::Linear(32, 1));
  });
  model.compile({.optimizer = optim::rmsprop({.learning_rate = 0.003}),
                 .loss = losses::mean_squared_error(),
                 .learning_rate = schedules::exponential(
                     {.initial = 0.003, .decay_steps = 20, .decay_rate = 0.5})});
  return learnt(model, model.fit(train, {.epochs = 3, .verbose = 0, .validation_split = 0.1}));
}

// ---- photos of any size, read where they are needed ----

class Photos : public data::Source {
 public:
  explicit Photos(fs::path folder, int64_t count) : folder_(std::move(folder)), count_(count) {}
  int64_t num_rows() const override { return count_; }
  const std::vector<data::Column>& columns() const override { return columns_; }
  data::Batch gather(std::span<const int64_t> rows) const override {
    data::Batch batch{{data::make_column(columns_[0], std::ssize(rows)),
                       data::make_column(columns_[1], std::ssize(rows))},
                      std::ssize(rows)};
    const auto images = batch.columns[0].as<float>();
    for (size_t i = 0; i < rows.size(); ++i) {
      const at::Tensor image = resized(read(rows[i]));
      std::copy_n(image.const_data_ptr<float>(), 16 * 16, images.begin() + i * 16 * 16);
      batch.columns[1].as<int64_t>()[i] = rows[i] % 3;
    }
    return batch;
  }

  static void write(const fs::path& folder, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t width = 20 + i % 9, height = 24 + i % 5;
      std::ofstream file(folder / (std::to_string(i) + ".pgm"), std::ios::binary);
      file << "P5 " << width << " " << height << " 255\n";
      for (int64_t p = 0; p < width * height; ++p)
        file << static_cast<char>(p % width * (i % 3 + 1) * 4 + i % 7);
    }
  }

 private:
  at::Tensor read(int64_t row) const {
    const fs::path path = folder_ / (std::to_string(row) + ".pgm");
    std::ifstream file(path, std::ios::binary);
    std::string magic;
    int64_t width = 0, height = 0, most = 0;
    if (!(file >> magic >> width >> height >> most) || magic != "P5")
      throw DataError("no photo: " + path.string());
    file.get();
    std::string bytes(static_cast<size_t>(width * height), '\0');
    file.read(bytes.data(), std::ssize(bytes));
    return torch::from_blob(bytes.data(), {1, 1, height, width}, torch::kUInt8)
        .to(torch::kFloat)
        .div(255);
  }
  static at::Tensor resized(const at::Tensor& image) {
    return torch::upsample_bilinear2d(image, {16, 16}, false).contiguous();
  }

  fs::path folder_;
  int64_t count_;
  std::vector<data::Column> columns_ = {{"x", DType::float32, {1, 16, 16}},
                                        {"y", DType::int64, {}}};
};

Learnt photos(const Strategy& strategy, const fs::path& folder) {
  constexpr int64_t kCount = 90;
  if (strategy.world().chief) Photos::write(folder, kCount);
  Model model(strategy, [] {
    const auto input = nn::input({1, 16, 16});
    auto x = nn::relu()(nn::batch_norm2d()(nn::conv2d(8, 3, {.padding = 1})(input)));
    return nn::Graph(input, nn::linear(3)(nn::dropout(0.2)(nn::flatten()(nn::max_pool2d(4)(x)))));
  });
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.05, .momentum = 0.9}),
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = {metrics::accuracy()}});
  const data::Dataset train(std::make_shared<Photos>(folder, kCount));
  return learnt(model, model.fit(train.shuffle().batch(18), {.epochs = 4, .verbose = 0}));
}

// ---- a small GPT, letter by letter ----

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t heads) : heads(heads) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }
  at::Tensor forward(at::Tensor x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto split =
        qkv(norm1(x)).reshape({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    const auto scores =
        split[0].matmul(split[1].transpose(-1, -2)) / std::sqrt(static_cast<double>(width / heads));
    const auto later = torch::ones({length, length}, torch::kBool).triu(1);
    const auto mixed = scores.masked_fill(later, -INFINITY).softmax(-1).matmul(split[2]);
    x = x + out(mixed.transpose(1, 2).reshape({batch, length, width}));
    return x + down(torch::gelu(up(norm2(x))));
  }
  int64_t heads;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct Gpt : torch::nn::Module {
  Gpt(int64_t letters, int64_t length, int64_t width) {
    token = register_module("token", torch::nn::Embedding(letters, width));
    place = register_parameter("place", 0.02 * torch::randn({length, width}));
    block = register_module("block", Block(width, 4));
    head = register_module("head", torch::nn::Linear(width, letters));
  }
  at::Tensor forward(const at::Tensor& letters) { return head(block(token(letters) + place)); }
  torch::nn::Embedding token{nullptr};
  at::Tensor place;
  Block block{nullptr};
  torch::nn::Linear head{nullptr};
};

constexpr int64_t kLength = 24;  // letters of a sample

Learnt char_gpt(const Strategy& strategy, const fs::path&) {
  constexpr int64_t kCount = 240;
  std::ifstream file(shared_data() / "tinyshakespeare/input.txt");
  std::string text(kLength * kCount + 1, ' ');
  file.read(text.data(), std::ssize(text));
  const std::vector<int64_t> codes(text.begin(), text.end());
  const at::Tensor all = torch::tensor(codes);
  const auto train =
      data::from_arrays({array_of(all.narrow(0, 0, kLength * kCount).reshape({kCount, kLength})),
                         array_of(all.narrow(0, 1, kLength * kCount).reshape({kCount, kLength}))})
          .shuffle()
          .batch(24);
  Model model(strategy,
              [] { return std::make_shared<Gpt>(/*letters=*/128, kLength, /*width=*/32); });
  const Loss next_letter("next_letter", [](const at::Tensor& logits, const at::Tensor& letters) {
    return torch::cross_entropy_loss(logits.transpose(1, 2), letters, {}, at::Reduction::None)
        .mean(1);
  });
  model.compile(
      {.optimizer = optim::Recipe(optim::adamw({.learning_rate = 3e-3}), {.global_norm = 1.0}),
       .loss = next_letter});
  return learnt(model, model.fit(train, {.epochs = 2, .verbose = 0}));
}

// ---- fine-tuning: weights from a file, the first layer frozen ----

torch::nn::Sequential trunk_and_head(bool frozen) {
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(28 * 28, 24), torch::nn::ReLU(),
                            torch::nn::Linear(24, 10));
  if (frozen)
    for (auto& parameter : net->ptr(1)->parameters()) parameter.requires_grad_(false);
  return net;
}

Learnt fine_tuning(const Strategy& strategy, const fs::path& folder) {
  const auto compiled = [&](bool frozen) {
    Model model(strategy, [frozen] { return trunk_and_head(frozen); });
    model.compile({.optimizer = optim::adam({.learning_rate = 3e-3}),
                   .loss = losses::sparse_categorical_crossentropy()});
    return model;
  };
  Model before = compiled(false);
  before.fit(doodles(200).batch(20), {.verbose = 0});
  before.save(folder / "before.safetensors");
  Model model = compiled(true);
  model.load(folder / "before.safetensors");
  return learnt(model, model.fit(doodles(400).shuffle().batch(40), {.epochs = 3, .verbose = 0}));
}

// ---- two inputs: who rates what ----

struct Ratings : torch::nn::Module {
  Ratings() {
    user = register_module("user", torch::nn::Embedding(kUsers, 8));
    film = register_module("film", torch::nn::Embedding(kFilms, 8));
    mix = register_module("mix", torch::nn::Linear(16, 1));
  }
  at::Tensor forward(const std::vector<at::Tensor>& ids) {
    return mix(torch::cat({user(ids.at(0)), film(ids.at(1))}, 1));
  }
  static constexpr int64_t kUsers = 700, kFilms = 500;
  torch::nn::Embedding user{nullptr}, film{nullptr};
  torch::nn::Linear mix{nullptr};
};

Learnt two_inputs(const Strategy& strategy, const fs::path&) {
  const at::Tensor table = columns_of(shared_data() / "movielens-small/ratings.csv", 600, 3);
  const at::Tensor ids = table.narrow(1, 0, 2).to(torch::kLong);
  const auto train = data::from_arrays({array_of(ids.select(1, 0) % Ratings::kUsers),
                                        array_of(ids.select(1, 1) % Ratings::kFilms),
                                        array_of(table.narrow(1, 2, 1))})
                         .shuffle()
                         .batch(30);
  Model model(strategy, [] { return std::make_shared<Ratings>(); });
  model.compile({.optimizer = optim::adagrad({.learning_rate = 0.1}),
                 .loss = losses::huber(),
                 .num_inputs = 2});
  return learnt(model, model.fit(train, {.epochs = 2, .verbose = 0}));
}

// ---- two outputs: which class, and how much ink ----

struct KindAndInk : torch::nn::Module {
  KindAndInk() {
    trunk = register_module("trunk", torch::nn::Linear(28 * 28, 24));
    kind = register_module("kind", torch::nn::Linear(24, 10));
    ink = register_module("ink", torch::nn::Linear(24, 1));
  }
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    const at::Tensor hidden = torch::relu(trunk(x.flatten(1)));
    return {kind(hidden), ink(hidden)};
  }
  torch::nn::Linear trunk{nullptr}, kind{nullptr}, ink{nullptr};
};

Learnt learn_two_outputs(const Strategy& strategy, const fs::path&) {
  const data::Batch all = doodles(300).batch(300).epoch({}).batch(0);
  const at::Tensor ink = tensor_of(all.columns[0]).mean({1, 2, 3}).unsqueeze(1);
  const auto train =
      data::from_arrays({all.columns[0], all.columns[1], array_of(ink)}).shuffle().batch(30);
  Model model(strategy, [] { return std::make_shared<KindAndInk>(); });
  model.compile({.optimizer = optim::adam({.learning_rate = 3e-3}),
                 .outputs = {{.name = "kind", .loss = losses::sparse_categorical_crossentropy()},
                             {.name = "ink", .loss = losses::mean_squared_error(), .weight = 5}}});
  return learnt(model, model.fit(train, {.epochs = 3, .verbose = 0}));
}

// ---- a simulator: rows are made when they are asked for ----

class Pendulum : public data::Source {
 public:
  int64_t num_rows() const override { return 400; }
  const std::vector<data::Column>& columns() const override { return columns_; }
  data::Batch gather(std::span<const int64_t> rows) const override {
    data::Batch batch{{data::make_column(columns_[0], std::ssize(rows)),
                       data::make_column(columns_[1], std::ssize(rows))},
                      std::ssize(rows)};
    const auto before = batch.columns[0].as<float>(), after = batch.columns[1].as<float>();
    for (size_t i = 0; i < rows.size(); ++i) {
      double angle = std::remainder(0.37 * static_cast<double>(rows[i]), 2 * std::numbers::pi);
      double speed = std::remainder(0.11 * static_cast<double>(rows[i]), 2.0);
      before[2 * i] = static_cast<float>(angle);
      before[2 * i + 1] = static_cast<float>(speed);
      for (int step = 0; step < 10; ++step) {
        speed -= 0.05 * std::sin(angle);
        angle += 0.05 * speed;
      }
      after[2 * i] = static_cast<float>(angle);
      after[2 * i + 1] = static_cast<float>(speed);
    }
    return batch;
  }

 private:
  std::vector<data::Column> columns_ = {{"before", DType::float32, {2}},
                                        {"after", DType::float32, {2}}};
};

Learnt simulator(const Strategy& strategy, const fs::path&) {
  Model model(strategy, [] {
    return torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                                 torch::nn::Linear(32, 2));
  });
  model.compile(
      {.optimizer = optim::nadam({.learning_rate = 0.01}), .loss = losses::mean_squared_error()});
  const data::Dataset train(std::make_shared<Pendulum>());
  return learnt(model, model.fit(train.shuffle().batch(40), {.epochs = 3, .verbose = 0}));
}

// ---- an autoencoder, and a forecast by an LSTM ----

Learnt autoencoder(const Strategy& strategy, const fs::path&) {
  const Array images = doodles(300).batch(300).epoch({}).batch(0).columns[0];
  Model model(strategy, [] {
    return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(28 * 28, 16),
                                 torch::nn::ReLU(), torch::nn::Linear(16, 28 * 28),
                                 torch::nn::Sigmoid(),
                                 torch::nn::Unflatten(torch::nn::UnflattenOptions(1, {1, 28, 28})));
  });
  model.compile(
      {.optimizer = optim::adam({.learning_rate = 3e-3}), .loss = losses::mean_squared_error()});
  const auto train = data::from_arrays({images, images}).shuffle().batch(30);
  return learnt(model, model.fit(train, {.epochs = 2, .verbose = 0, .accumulate = 2}));
}

struct Forecast : torch::nn::Module {
  Forecast() {
    lstm =
        register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(1, 12).batch_first(true)));
    out = register_module("out", torch::nn::Linear(12, 1));
  }
  at::Tensor forward(const at::Tensor& series) {
    return out(std::get<0>(lstm(series)).select(1, -1));
  }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear out{nullptr};
};

Learnt forecast(const Strategy& strategy, const fs::path&) {
  const at::Tensor wave =
      torch::sin(torch::arange(220) * 0.3) + 0.1 * torch::cos(torch::arange(220) * 1.7);
  const auto train =
      data::from_arrays({array_of(wave.unfold(0, 20, 1).narrow(0, 0, 200).unsqueeze(2)),
                         array_of(wave.narrow(0, 20, 200).unsqueeze(1))})
          .shuffle()
          .batch(20);
  Model model(strategy, [] { return std::make_shared<Forecast>(); });
  model.compile(
      {.optimizer = optim::adam({.learning_rate = 0.01}), .loss = losses::mean_squared_error()});
  return learnt(model, model.fit(train, {.epochs = 3, .verbose = 0}));
}

}  // namespace

std::vector<NamedProgram> programs_that_fit() {
  return {{"mnist", mnist, true},
          {"housing", housing, true},
          {"photos", photos},
          {"char_gpt", char_gpt, true},
          {"fine_tuning", fine_tuning, false, true},
          {"two_inputs", two_inputs, true},
          {"two_outputs", learn_two_outputs},
          {"simulator", simulator},
          {"autoencoder", autoencoder},
          {"forecast", forecast}};
}

}  // namespace tutti::test
