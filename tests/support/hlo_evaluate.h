/// Programs of tutti/hlo computed by the plugin for CPUs.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/hlo/program.h"
#include "tutti/pjrt/client.h"

namespace tutti::test {

/// The path of the plugin for CPUs. UsageError where it is not here.
std::string cpu_plugin();
/// It, with two devices.
pjrt::Client cpu_client();

/// Tests of what programs compute, where the build has PJRT.
class Evaluated : public ::testing::Test {
 protected:
  void SetUp() override;
};

/// A program that is compiled once and run often.
class Evaluation {
 public:
  explicit Evaluation(const hlo::Program& program);
  Evaluation(std::string_view text, int replicas);
  Evaluation(Evaluation&&) noexcept;
  ~Evaluation();

  /// The results of each replica, for the arguments of each.
  std::vector<std::vector<Array>> run(const std::vector<std::vector<Array>>& arguments) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Array array_of(std::vector<int64_t> shape, const std::vector<float>& elements);
Array array_of(std::vector<int64_t> shape, const std::vector<int32_t>& elements);
std::vector<float> floats_of(const Array& array);

/// The results of a program of one replica.
std::vector<Array> evaluate(const hlo::Program& program, const std::vector<Array>& arguments);

}  // namespace tutti::test
