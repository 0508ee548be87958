// What forward takes, says and leaves alone.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/exported/detail/loaded.h"
#include "tutti/exported/detail/runner.h"
#include "tutti/exported/from_export.h"
#include "tutti/exported/module.h"
#include "tutti/nn/precision.h"

#include "tests/support/expect.h"
#include "tests/support/pt2_files.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

const std::filesystem::path kNets = "tests/tables/exported";

std::string refused(ExportedModule& module, const std::vector<at::Tensor>& inputs) {
  return message_of<UsageError>([&] { module.forward_all(inputs); });
}

TEST(ExportedForward, TensorsThatTheGraphMakesAreOnTheModulesDevice) {
  // On a device that computes shapes alone; with the graph's arange on the CPU, as the file has it,
  // the sum would throw.
  const exported::detail::ProgramFile file(kNets / "in_place.pt2");
  exported::detail::TensorMaker maker(file);
  const at::Device meta(at::kMeta);
  std::vector<c10::IValue> values;
  for (const pt2::InputSpec& spec : file.program.inputs)
    values.emplace_back(spec.kind == pt2::InputSpec::Kind::user
                            ? torch::zeros({3, 6}, at::TensorOptions().device(meta))
                            : maker.make(spec.target).to(meta));
  const auto given = values;
  const auto made = exported::detail::run_calls(*file.plan, std::move(values), meta);
  EXPECT_TRUE(made.at(0).toTensor().is_meta());
  EXPECT_EQ(made.at(0).toTensor().sizes(), at::IntArrayRef({3, 3}));
  EXPECT_THROW(exported::detail::run_calls(*file.plan, given, at::kCPU), c10::Error);
}

TEST(ExportedForward, WhatTheGraphChangesInPlaceIsACopyOfTheInput) {
  const auto module = from_export(kNets / "in_place.pt2")();
  const at::Tensor x = torch::randn({5, 6}), before = x.clone();
  const auto parameters = module->named_parameters();
  const at::Tensor expected =
      at::linear(x * 0.5 + torch::arange(6.0), parameters["head.weight"], parameters["head.bias"]);
  EXPECT_TRUE(at::equal(module->forward(x), expected));
  EXPECT_TRUE(at::equal(x, before));
}

TEST(ExportedForward, WhatExportSawOfTypesBindsNoOtherPrecision) {
  const auto module = from_export(kNets / "in_place.pt2")();
  ASSERT_TRUE(std::ranges::any_of(module->program().graph.nodes, [](const pt2::Node& node) {
    return node.target.find("_assert_tensor_metadata") != std::string::npos;
  }));
  const at::Tensor x = torch::randn({5, 6}), expected = module->forward(x);
  const Autocast autocast(Precision::bfloat16, "cpu");
  const at::Tensor half = module->forward(x);
  EXPECT_EQ(half.scalar_type(), at::kFloat);
  EXPECT_FALSE(at::equal(half, expected));
  EXPECT_TRUE(at::allclose(half, expected, 0.05, 0.1));
}

TEST(ExportedForward, OneGraphServesBothModesWhereOnlyTheInputIsChanged) {
  from_export(kNets / "in_place.pt2").require_evaluation();
  EXPECT_THAT(
      message_of<UsageError>([] { from_export(kNets / "control.pt2").require_evaluation(); }),
      HasSubstr("draws random numbers"));
}

TEST(ExportedForward, InputsAreCheckedAgainstTheExport) {
  const auto module = from_export(kNets / "named.pt2")();
  const auto ids = torch::zeros({4, 4}, at::kLong);
  const auto numbers = torch::zeros({4, 3}), scale = torch::ones({4});
  EXPECT_EQ(module->forward_all({ids, numbers, scale}).size(), 3u);
  EXPECT_THAT(refused(*module, {ids, numbers}),
              HasSubstr("got 2 tensors, expected 3: batch.ids, batch.numbers, scale"));
  EXPECT_THAT(refused(*module, {ids, numbers.to(at::kDouble), scale}),
              HasSubstr("input \"batch.numbers\" is Double [4, 3], the model was exported for "
                        "float32 ["));
  EXPECT_THAT(refused(*module, {ids, torch::zeros({4, 4}), scale}),
              HasSubstr("is Float [4, 4], the model was exported for float32 ["));
  EXPECT_THAT(refused(*module, {ids, torch::zeros({5, 3}), scale}),
              AllOf(HasSubstr("is Float [5, 3]"), HasSubstr(" is 4 in input \"batch.ids\"")));
  EXPECT_THAT(refused(*module, {ids, numbers, at::Tensor()}), HasSubstr("\"scale\" is undefined"));
  EXPECT_THAT(message_of<UsageError>([&] { module->forward(ids); }), HasSubstr("got 1 tensors"));
  EXPECT_THAT(message_of<UsageError>(
                  [&] { module->forward_named({{"batch.ids", ids}, {"batch.number", numbers}}); }),
              HasSubstr("did you mean \"batch.numbers\""));
  EXPECT_THAT(message_of<UsageError>([&] { module->forward_named({{"scale", scale}}); }),
              HasSubstr("input \"batch.ids\" is missing"));
}

TEST(ExportedForward, SizesLieInTheRangeOfTheirSymbol) {
  const TempFolder folder;
  ZipFile zip = read_zip(kNets / "mlp.pt2");
  change_json(zip, kModel, [](OrderedJson& json) {
    for (auto& range : json.at("range_constraints"))
      range = OrderedJson{{"min_val", 2}, {"max_val", 5}};
  });
  put_bytes(folder / "mlp.pt2", zip.bytes());
  const auto module = from_export(folder / "mlp.pt2")();
  for (const int64_t batch : {2, 5})
    EXPECT_EQ(module->forward(torch::zeros({batch, 6})).size(0), batch);
  for (const int64_t batch : {0, 1, 6})
    EXPECT_THAT(refused(*module, {torch::zeros({batch, 6})}), HasSubstr(": 2 to 5")) << batch;
}

TEST(ExportedForward, AnOperatorThatFailsIsNamedWithItsLineOfPython) {
  const auto module = from_export(kNets / "gpt.pt2")();
  try {
    module->forward(torch::full({2, 4}, 99, at::kLong));
    FAIL() << "there are 17 words";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), ContainsRegex("in aten::embedding, make_exported.py:[0-9]+, in "
                                            "forward: x = self.token"));
  }
}

TEST(ExportedForward, TiedWeightsAreThereOnceAndTrainAsOne) {
  const auto module = from_export(kNets / "gpt.pt2")();
  const auto names = module->named_parameters().keys();
  EXPECT_THAT(names, Contains("token.weight"));
  EXPECT_THAT(names, Not(Contains("head.weight")));
  module->forward(torch::zeros({2, 4}, at::kLong)).sum().backward();
  const at::Tensor gradient = module->named_parameters()["token.weight"].grad();
  EXPECT_GT(gradient[5].abs().sum().item<float>(), 0) << "of the head: word 5 was not looked up";
}

}  // namespace
}  // namespace tutti
