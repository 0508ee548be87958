// Trains by programs in files: a step that JAX has exported, against the same in plain loops.
#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tutti/train/lowered/program_trainer.h"

#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

namespace tutti::own_program {
namespace {

namespace fs = std::filesystem;

const fs::path kJaxStep = "tests/data/jax_step";
const Millis kPatience{120'000};

// As export_step.py has them.
constexpr int kRows = 16, kInputs = 4, kHidden = 8, kClasses = 3, kSteps = 20;
constexpr double kLearningRate = 0.5;

Array numbers(std::vector<int64_t> shape, int64_t seed) {
  Array array = Array::zeros(DType::float32, std::move(shape));
  int64_t i = seed;
  for (float& element : array.as<float>())
    element = static_cast<float>(static_cast<double>((i++ * 37 + 11) % 101) / 101 - 0.5);
  return array;
}

Array labels(int64_t seed) {
  Array array = Array::zeros(DType::int32, {kRows});
  for (int64_t row = 0; row < kRows; ++row)
    array.as<int32_t>()[static_cast<size_t>(row)] =
        static_cast<int32_t>((row * 7 + seed) % kClasses);
  return array;
}

std::vector<Array> first_parameters() {
  return {numbers({kInputs, kHidden}, 0), numbers({kHidden}, 1), numbers({kHidden, kClasses}, 2),
          numbers({kClasses}, 3)};
}

std::vector<Array> batch(int step) { return {numbers({kRows, kInputs}, 100 + step), labels(step)}; }

/// The network in float64, a row at a time.
struct PlainTraining {
  std::vector<std::vector<double>> parameters;
  double loss = 0;
  int right = 0;

  PlainTraining() {
    for (const Array& array : first_parameters()) {
      const auto elements = array.as<float>();
      parameters.emplace_back(elements.begin(), elements.end());
    }
  }

  void step(const std::vector<Array>& inputs) {
    const auto &w0 = parameters[0], &b0 = parameters[1], &w1 = parameters[2], &b1 = parameters[3];
    std::vector<std::vector<double>> gradients;
    for (const auto& p : parameters) gradients.emplace_back(p.size(), 0.0);
    loss = 0;
    right = 0;
    for (size_t row = 0; row < kRows; ++row) {
      const float* const x = &inputs[0].as<float>()[row * kInputs];
      const auto y = static_cast<size_t>(inputs[1].as<int32_t>()[row]);
      double hidden[kHidden], chance[kClasses], sum = 0;
      for (size_t h = 0; h < kHidden; ++h) {
        hidden[h] = b0[h];
        for (size_t i = 0; i < kInputs; ++i) hidden[h] += x[i] * w0[i * kHidden + h];
        hidden[h] = std::tanh(hidden[h]);
      }
      for (size_t c = 0; c < kClasses; ++c) {
        chance[c] = b1[c];
        for (size_t h = 0; h < kHidden; ++h) chance[c] += hidden[h] * w1[h * kClasses + c];
        chance[c] = std::exp(chance[c]);
        sum += chance[c];
      }
      for (double& one : chance) one /= sum;
      loss -= std::log(chance[y]) / kRows;
      right += std::ranges::max_element(chance) == chance + y ? 1 : 0;
      for (size_t h = 0; h < kHidden; ++h) {
        double back = 0;
        for (size_t c = 0; c < kClasses; ++c) {
          const double wrong = (chance[c] - (c == y ? 1 : 0)) / kRows;
          back += wrong * w1[h * kClasses + c];
          gradients[2][h * kClasses + c] += wrong * hidden[h];
          if (h == 0) gradients[3][c] += wrong;
        }
        back *= 1 - hidden[h] * hidden[h];
        gradients[1][h] += back;
        for (size_t i = 0; i < kInputs; ++i) gradients[0][i * kHidden + h] += back * x[i];
      }
    }
    for (size_t p = 0; p < parameters.size(); ++p)
      for (size_t i = 0; i < parameters[p].size(); ++i)
        parameters[p][i] -= kLearningRate * gradients[p][i];
  }
};

void expect_near(const std::vector<Array>& got, const std::vector<std::vector<double>>& expected,
                 double apart) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t p = 0; p < got.size(); ++p) {
    ASSERT_EQ(got[p].as<float>().size(), expected[p].size());
    for (size_t i = 0; i < expected[p].size(); ++i)
      EXPECT_NEAR(got[p].as<float>()[i], expected[p][i], apart) << "parameter " << p << ", " << i;
  }
}

ProgramTrainer trainer_of(const fs::path& file) { return {cpu_client(), file, first_parameters()}; }

void expect_trains_as_plain_loops(const fs::path& file) {
  ProgramTrainer trainer = trainer_of(file);
  PlainTraining plain;
  double first = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto figures = trainer.step({batch(step)}).figures(Deadline(kPatience));
    plain.step(batch(step));
    ASSERT_EQ(figures.size(), 1U);
    ASSERT_EQ(figures[0].size(), 2U);
    EXPECT_NEAR(figures[0][0].as<float>()[0], plain.loss, 1e-5) << "step " << step;
    EXPECT_EQ(figures[0][1].as<int32_t>()[0], plain.right) << "step " << step;
    if (step == 0) first = plain.loss;
  }
  EXPECT_LT(plain.loss, first);
  expect_near(trainer.state(), plain.parameters, 1e-5);
}

/// A file with that program: main() keeps two numbers, takes one, adds it and gives their sum.
class OwnProgram : public Evaluated {
 protected:
  fs::path write(const std::string& text) const {
    put_bytes(folder_ / "own.mlir", text);
    return folder_ / "own.mlir";
  }

  fs::path adding() const {
    return write(R"(module {
  func.func public @main(%k: tensor<2xf32>, %n: tensor<i32>, %x: tensor<2xf32>)
      -> (tensor<2xf32>, tensor<i32>, tensor<2xf32>) {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.add %n, %one : tensor<i32>
    %s = stablehlo.add %k, %x : tensor<2xf32>
    %d = stablehlo.add %s, %s : tensor<2xf32>
    return %s, %m, %d : tensor<2xf32>, tensor<i32>, tensor<2xf32>
  }
})");
  }

  static std::vector<Array> two_and_a_count() {
    return {array_of({2}, std::vector<float>{1, 2}), array_of({}, std::vector<int32_t>{7})};
  }

  TempFolder folder_;
};

TEST_F(OwnProgram, JaxStepTrainsAsPlainLoopsDo) {
  expect_trains_as_plain_loops(kJaxStep / "step.mlir");
}

TEST_F(OwnProgram, SoDoesItsBytecode) { expect_trains_as_plain_loops(kJaxStep / "step.mlirbc"); }

TEST_F(OwnProgram, ExportedAnewItTrainsAsJaxItself) {
  const Python python("jax");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  python.run("import runpy, sys\nsys.argv[1:] = ['" + folder_.path().string() +
             "']\nrunpy.run_path('tests/data/jax_step/export_step.py', run_name='__main__')\n");
  const auto trained = nlohmann::json::parse(get_bytes(folder_ / "trained.json"));
  const auto losses = trained.at("losses").get<std::vector<double>>();
  const auto parameters = trained.at("parameters").get<std::vector<std::vector<double>>>();
  ASSERT_EQ(losses.size(), size_t{kSteps});
  for (const char* file : {"step.mlir", "step.mlirbc"}) {
    ProgramTrainer trainer = trainer_of(folder_ / file);
    for (int step = 0; step < kSteps; ++step) {
      const auto figures = trainer.step({batch(step)}).figures(Deadline(kPatience));
      EXPECT_NEAR(figures[0][0].as<float>()[0], losses[static_cast<size_t>(step)], 1e-5)
          << file << ", step " << step;
    }
    expect_near(trainer.state(), parameters, 1e-5);
  }
}

TEST_F(OwnProgram, WhatIsKeptStaysAndStepsAreNotWaitedFor) {
  ProgramTrainer trainer(cpu_client(), adding(), two_and_a_count());
  const Array one = array_of({2}, std::vector<float>{1, 10});
  std::vector<ProgramStep> steps;
  for (int i = 0; i < 3; ++i) steps.push_back(trainer.step({{one}}));
  EXPECT_THAT(floats_of(trainer.state()[0]), ElementsAre(4, 32));
  EXPECT_EQ(trainer.state()[1].as<int32_t>()[0], 10);
  EXPECT_THAT(floats_of(steps[1].figures(Deadline(kPatience))[0][0]), ElementsAre(6, 44));
  trainer.load(two_and_a_count());
  EXPECT_THAT(floats_of(trainer.step({{one}}).figures(Deadline(kPatience))[0][0]),
              ElementsAre(4, 24));
}

TEST_F(OwnProgram, ReplicasTrainAsTheProgramSays) {
  const fs::path file = write(R"(module attributes {mhlo.num_replicas = 2 : i32} {
  func.func public @main(%k: tensor<f32>, %x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
    %s = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %q = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %q : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    %n = stablehlo.add %k, %s : tensor<f32>
    return %n, %x : tensor<f32>, tensor<f32>
  }
})");
  const auto number = [](float value) { return array_of({}, std::vector<float>{value}); };
  ProgramTrainer trainer(cpu_client(), file, {number(1)}, {.replicas = 2});
  const auto figures = trainer.step({{number(2)}, {number(3)}}).figures(Deadline(kPatience));
  EXPECT_EQ(floats_of(figures[0][0])[0], 2);
  EXPECT_EQ(floats_of(figures[1][0])[0], 3);
  for (const int replica : {0, 1}) EXPECT_EQ(floats_of(trainer.state(replica)[0])[0], 6);
  EXPECT_THAT(message_of<UsageError>([&] { trainer.state(2); }),
              HasSubstr("replica 2 of 2: they count from 0"));
  EXPECT_THAT(message_of<UsageError>([&] { trainer.step({{number(2)}}); }),
              HasSubstr("own.mlir: inputs of 1 replica, expected of 2"));
  const auto open = [&](int replicas) {
    return message_of<UsageError>(
        [&] { ProgramTrainer(cpu_client(), file, {number(1)}, {.replicas = replicas}); });
  };
  EXPECT_THAT(open(1), AllOf(HasSubstr("own.mlir: "), HasSubstr("for 2 replicas")));
  EXPECT_THAT(open(3), AllOf(HasSubstr("own.mlir: "), HasSubstr("3 replicas on 2 devices")));
}

TEST_F(OwnProgram, FilesThatAreNoProgramsAreNamed) {
  const auto message = [](const fs::path& file) {
    return message_of<DataError>([&] { trainer_of(file); });
  };
  EXPECT_THAT(message(folder_ / "none.mlir"), HasSubstr("none.mlir"));
  EXPECT_THAT(message(folder_.path()), HasSubstr(folder_.path().string()));
  EXPECT_THAT(message(write("")),
              AllOf(HasSubstr("own.mlir: the file is empty"), HasSubstr("expected StableHLO")));
  EXPECT_THAT(message(write("def step(x): pass\n")),
              AllOf(HasSubstr("own.mlir: PJRT plugin"), HasSubstr("PJRT_Client_Compile")));
  std::string cut = get_bytes(kJaxStep / "step.mlirbc");
  cut.resize(cut.size() / 2);
  EXPECT_THAT(message(write(cut)), HasSubstr("own.mlir: PJRT plugin"));
  EXPECT_THAT(message_of<UsageError>([] {
                ProgramTrainer(cpu_client(), kJaxStep / "step.mlirbc", first_parameters(),
                               {.replicas = 2});
              }),
              AllOf(HasSubstr("step.mlirbc: 2 replicas of bytecode"), HasSubstr("as text")));
}

TEST_F(OwnProgram, WhatItKeepsMustFit) {
  const auto message = [](const fs::path& file, const std::vector<Array>& state) {
    return message_of<UsageError>([&] { ProgramTrainer(cpu_client(), file, state); });
  };
  std::vector<Array> state = two_and_a_count();
  EXPECT_THAT(message(adding(), {}), HasSubstr("own.mlir: it keeps nothing"));
  std::swap(state[0], state[1]);
  EXPECT_THAT(message(adding(), state),
              HasSubstr("own.mlir: result 0 of main() is float32 [2], array 0 that it keeps int32 "
                        "[]: what is kept stands first"));
  EXPECT_THAT(message(adding(), {numbers({3}, 0)}), HasSubstr("array 0 that it keeps float32 [3]"));
  const Array two = numbers({2}, 0), count = array_of({}, std::vector<int32_t>{7});
  EXPECT_THAT(message(adding(), {two, count, two, two}),
              HasSubstr("own.mlir: main() has 3 results, expected at least as many as the 4 arrays "
                        "that it keeps"));
  // Its results fit, not what it takes.
  const fs::path turned = write(R"(module {
  func.func public @main(%x: tensor<3xf32>, %k: tensor<2xf32>) -> (tensor<2xf32>, tensor<3xf32>) {
    return %k, %x : tensor<2xf32>, tensor<3xf32>
  }
})");
  EXPECT_THAT(message(turned, {two}),
              HasSubstr("own.mlir: argument 0 of main() is float32 [3], array 0 that it keeps "
                        "float32 [2]"));
  const fs::path fewer = write(R"(module {
  func.func public @main(%k: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    return %k, %k : tensor<2xf32>, tensor<2xf32>
  }
})");
  EXPECT_THAT(message(fewer, {two, two}), HasSubstr("main() has 1 argument, expected"));
}

TEST_F(OwnProgram, InputsOfAStepMustFitAndNothingHasRunOtherwise) {
  ProgramTrainer trainer(cpu_client(), adding(), two_and_a_count());
  const auto message = [&](std::vector<Array> inputs) {
    return message_of<UsageError>([&] { trainer.step({std::move(inputs)}); });
  };
  EXPECT_THAT(message({}), HasSubstr("own.mlir: replica 0 got 0 arrays for a step, expected 1"));
  EXPECT_THAT(message({array_of({2}, std::vector<int32_t>{1, 2})}),
              HasSubstr("own.mlir: input 0 of replica 0 is int32 [2], expected float32 [2]"));
  EXPECT_THAT(message({numbers({1, 2}, 0)}), HasSubstr("is float32 [1, 2], expected float32 [2]"));
  EXPECT_THAT(message_of<UsageError>([&] { trainer.load({numbers({2}, 0)}); }),
              HasSubstr("own.mlir: got 1 array to keep, expected 2"));
  EXPECT_THAT(message_of<UsageError>([&] { trainer.load({numbers({2}, 0), numbers({}, 0)}); }),
              HasSubstr("own.mlir: array 1 to keep is float32 [], expected int32 []"));
  EXPECT_THAT(floats_of(trainer.state()[0]), ElementsAre(1, 2));
}

}  // namespace
}  // namespace tutti::own_program
