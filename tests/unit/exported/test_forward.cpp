// What forward takes, says and leaves alone.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/exported/detail/loaded.h"
#include "tutti/exported/detail/runner.h"
#include "tutti/exported/from_export.h"
#include "tutti/exported/module.h"
#include "tutti/exported/stages.h"
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

TEST(ExportedForward, WhatOperatorsAndRegionsGiveBackOfInputsIsChangedInCopies) {
  const auto module = from_export(kNets / "given_back.pt2")();
  std::vector<at::Tensor> inputs, given;
  for (int i = 0; i < 6; ++i) inputs.push_back(torch::randn({5, 6}));
  for (const at::Tensor& input : inputs) given.push_back(input.clone());
  const auto parameters = module->named_parameters();
  const at::Tensor sum =
      given[0] * 2 + (given[1] + 1) + given[2] * 3 + given[3] * 5 + given[4].neg() + (given[5] + 7);
  const at::Tensor expected = at::linear(sum, parameters["head.weight"], parameters["head.bias"]);
  EXPECT_TRUE(at::equal(module->forward_all(inputs).at(0), expected));
  for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(at::equal(inputs[i], given[i])) << i;
}

TEST(ExportedForward, InputsThatNobodyChangesAreNotCopied) {
  for (const char* name : {"cnn.pt2", "gpt.pt2", "dlrm.pt2", "lstm.pt2", "named.pt2", "vit.pt2"}) {
    const exported::detail::ProgramFile file(kNets / name);
    for (const size_t input : file.plan->perhaps_written)
      EXPECT_NE(file.program.inputs[input].kind, pt2::InputSpec::Kind::user) << name;
  }
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

TEST(ExportedForward, AGraphThatWritesToItsParametersHasNoAdapters) {
  EXPECT_NO_THROW(from_export(kNets / "clamped.pt2"));
  EXPECT_THAT([] { from_export(kNets / "clamped.pt2", {.lora = {{.pattern = "*", .rank = 1}}}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("lora: the graph of "),
                                              HasSubstr("writes to parameter \"head.weight\""))));
  const TempFolder folder;
  ZipFile zip = read_zip(kNets / "given_back.pt2");
  change_json(zip, kModel, [](OrderedJson& json) {
    auto& dropout = json.at("graph_module").at("graph").at("nodes")[0];
    dropout.at("inputs")[0].at("arg").at("as_tensor").at("name") = "p_head_weight";
  });
  put_bytes(folder / "may.pt2", zip.bytes());
  EXPECT_NO_THROW(from_export(folder / "may.pt2"));
  EXPECT_THAT(
      [&] { from_export(folder / "may.pt2", {.lora = {{.pattern = "*", .rank = 1}}}); },
      ThrowsMessage<UsageError>(HasSubstr("may write to parameter \"head.weight\" by itself")));
}

TEST(ExportedForward, AdaptersAndWhatTheyStandBesideMoveTogether) {
  const auto module = from_export(kNets / "mlp.pt2", {.lora = {{.pattern = "head", .rank = 2}}})();
  EXPECT_EQ(module->parameters().size(), 2u);
  module->to(at::kDouble);
  for (const auto& tensors : {module->parameters(), module->base()->parameters()})
    for (const at::Tensor& tensor : tensors) EXPECT_EQ(tensor.scalar_type(), at::kDouble);
  for (const auto& [name, merged] : module->merged_parameters())
    EXPECT_EQ(merged.scalar_type(), at::kDouble) << name;
}

TEST(ExportedFreeze, FrozenParametersHaveNoGradientAndTheOthersThatOfLibTorch) {
  const auto module = from_export(kNets / "mlp.pt2", {.freeze = {"hidden"}})();
  const auto named = module->named_parameters();
  const at::Tensor x = torch::randn({6, 6}), target = torch::tensor({0, 1, 2, 2, 1, 0});
  const at::Tensor weight = named["head.weight"].detach().clone().requires_grad_();
  const at::Tensor bias = named["head.bias"].detach().clone().requires_grad_();
  const at::Tensor hidden = at::linear(x, named["hidden.weight"], named["hidden.bias"]);
  at::cross_entropy_loss(at::linear(at::gelu(hidden), weight, bias), target).backward();
  at::cross_entropy_loss(module->forward(x), target).backward();
  EXPECT_TRUE(at::equal(named["head.weight"].grad(), weight.grad()));
  EXPECT_TRUE(at::equal(named["head.bias"].grad(), bias.grad()));
  for (const char* name : {"hidden.weight", "hidden.bias"}) {
    EXPECT_FALSE(named[name].requires_grad()) << name;
    EXPECT_FALSE(named[name].grad().defined()) << name;
  }
}

TEST(ExportedFreeze, PatternsAreOfWholeNamesAndModulesAndFreezeAllNamesOfOneWeight) {
  const auto frozen = [](const char* net, std::vector<std::string> patterns) {
    std::vector<std::string> names;
    const auto module = from_export(kNets / net, {.freeze = std::move(patterns)})();
    for (const auto& parameter : module->named_parameters())
      if (!parameter.value().requires_grad()) names.push_back(parameter.key());
    return names;
  };
  EXPECT_THAT(frozen("mlp.pt2", {"*.bias"}), UnorderedElementsAre("hidden.bias", "head.bias"));
  EXPECT_THAT(frozen("gpt.pt2", {"head"}), UnorderedElementsAre("token.weight"));
  EXPECT_THAT(frozen("gpt.pt2", {"block.up", "norm.weight"}),
              UnorderedElementsAre("block.up.weight", "block.up.bias", "norm.weight"));
  EXPECT_THAT(
      message_of<UsageError>([&] { frozen("mlp.pt2", {"hid"}); }),
      AllOf(HasSubstr("no parameter of"), HasSubstr("\"hid\""), HasSubstr("hidden.weight")));
  EXPECT_THAT(message_of<UsageError>([&] { frozen("mlp.pt2", {"*"}); }),
              HasSubstr("nothing would be trained"));
}

// ---- stages: each net cut at each of its places, against the whole ----

struct CutNet {
  std::string name;
  bool has_eval = false;
  std::vector<std::string> places;  ///< the outermost module of each
};
void PrintTo(const CutNet& net, std::ostream* out) { *out << net.name; }

const std::vector<CutNet>& cut_nets() {
  static const std::vector<CutNet> nets{
      {"mlp", false, {"head"}},
      {"cnn", true, {"features.1", "features.3", "head"}},
      {"certain", true, {"norm", "drop", "head"}},
      {"both", false, {"both", "kind", "height"}},
      {"dlrm", false, {"bottom.1", "bottom.2", "bags", "bags.1", "top", "top.1", "top.2"}},
      {"named", false, {"numbers", "head"}},
      {"frozen", false, {"head"}},
      {"blocks", false, {"place",    "h",    "h.0.qkv", "h.0.out", "h.0.ln_2", "h.0.up",
                         "h.0.down", "h.1",  "h.1.qkv", "h.1.out", "h.1.ln_2", "h.1.up",
                         "h.1.down", "h.2",  "h.2.qkv", "h.2.out", "h.2.ln_2", "h.2.up",
                         "h.2.down", "norm", "head"}},
      {"in_place", false, {"head"}},
      {"given_back", false, {"head"}},
  };
  return nets;
}

std::shared_ptr<ExportedModule> module_of(const CutNet& net) {
  static std::map<std::string, FromExport> files;
  const auto known = files.find(net.name);
  if (known != files.end()) return known->second();
  FromExportOptions options;
  if (net.has_eval) options.eval = kNets / (net.name + ".eval.pt2");
  return files.emplace(net.name, from_export(kNets / (net.name + ".pt2"), options)).first->second();
}

/// Five rows.
std::vector<at::Tensor> some_inputs(const ExportedModule& module) {
  torch::manual_seed(5);
  std::vector<at::Tensor> inputs;
  for (const ExportedInput& input : module.input_shapes()) {
    std::vector<int64_t> sizes{5};
    for (size_t d = 1; d < input.sizes.size(); ++d) sizes.push_back(input.sizes[d].value);
    inputs.push_back(input.element == pt2::Element::int64 ? torch::randint(9, sizes, at::kLong)
                                                          : torch::randn(sizes));
  }
  return inputs;
}

/// Of all outputs, with weights that differ.
at::Tensor weighed(const std::vector<at::Tensor>& outputs) {
  at::Tensor sum = torch::zeros({});
  for (const at::Tensor& output : outputs)
    sum = sum + (output * torch::arange(output.numel()).view_as(output).cos()).sum();
  return sum;
}

using ByName = std::map<std::string, at::Tensor>;

void add_gradients(ByName& all, const std::vector<at::Tensor>& roots,
                   const std::vector<at::Tensor>& gradients, const ExportedModule& module,
                   std::vector<at::Tensor>* of_inputs, const std::vector<ExportedTie>& ties) {
  std::vector<std::string> names;
  std::vector<at::Tensor> targets;
  for (const auto& one : module.named_parameters())
    if (one.value().requires_grad()) names.push_back(one.key()), targets.push_back(one.value());
  for (const ExportedTie& tie : ties) names.push_back(tie.name), targets.push_back(tie.parameter);
  const size_t own = targets.size();
  if (of_inputs != nullptr)
    for (const at::Tensor& input : *of_inputs)
      if (input.requires_grad()) targets.push_back(input);
  if (roots.empty()) return;
  auto made = torch::autograd::grad(roots, targets, gradients, std::nullopt, false, true);
  for (size_t i = 0; i < own; ++i) {
    if (!made[i].defined()) continue;
    at::Tensor& sum = all[names[i]];
    sum = sum.defined() ? sum + made[i] : made[i];
  }
  if (of_inputs != nullptr)
    of_inputs->assign(made.begin() + static_cast<ptrdiff_t>(own), made.end());
}

struct Computed {
  std::vector<at::Tensor> outputs;
  ByName gradients, buffers;
};

Computed whole_of(const CutNet& net, bool train) {
  const auto module = module_of(net);
  module->train(train);
  Computed made{module->forward_all(some_inputs(*module)), {}, {}};
  add_gradients(made.gradients, {weighed(made.outputs)}, {}, *module, nullptr, {});
  for (const auto& buffer : module->named_buffers()) made.buffers[buffer.key()] = buffer.value();
  return made;
}

Computed in_stages(const CutNet& net, size_t place, bool train) {
  const auto whole = module_of(net);
  whole->train(train);
  const ExportedCuts cuts(whole);
  const std::vector<exported::CutPlace> at{cuts.begin(), cuts.places().all[place], cuts.end()};
  const auto first = cuts.stage(at, 0), second = cuts.stage(at, 1);
  const auto given = some_inputs(*whole), before = some_inputs(*whole);
  const auto sent = first->forward_part(given);
  for (size_t i = 0; i < given.size(); ++i) EXPECT_TRUE(at::equal(given[i], before[i])) << i;
  std::vector<at::Tensor> taken;
  for (const at::Tensor& one : sent)
    taken.push_back(one.detach().clone().set_requires_grad(one.is_floating_point()));
  Computed made{second->forward_part(taken), {}, {}};
  std::vector<ExportedTie> copies;
  for (const ExportedTie& tie : second->ties) copies.push_back(tie);
  add_gradients(made.gradients, {weighed(made.outputs)}, {}, *second, &taken, copies);
  std::vector<at::Tensor> roots, gradients;
  size_t next = 0;
  for (const at::Tensor& one : sent) {
    if (!one.is_floating_point()) continue;
    const at::Tensor gradient = taken.at(next++);
    if (!one.requires_grad() || !gradient.defined()) continue;
    roots.push_back(one);
    gradients.push_back(gradient);
  }
  add_gradients(made.gradients, roots, gradients, *first, nullptr, {});
  for (const auto& stage : {first, second})
    for (const auto& buffer : stage->named_buffers()) made.buffers[buffer.key()] = buffer.value();
  return made;
}

void expect_equal(const ByName& made, const ByName& expected, const std::string& where) {
  std::vector<std::string> names, wanted;
  for (const auto& [name, tensor] : made) names.push_back(name);
  for (const auto& [name, tensor] : expected) wanted.push_back(name);
  EXPECT_EQ(names, wanted) << where;
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(made.contains(name) && at::equal(made.at(name), tensor)) << where << name;
}

class ExportedInStages : public ::testing::TestWithParam<CutNet> {};

TEST_P(ExportedInStages, AreTheWholeWhereverItIsCut) {
  const CutNet& net = GetParam();
  const auto places = ExportedCuts(module_of(net)).places().all;
  std::vector<std::string> names;
  for (const auto& place : places) names.push_back(place.names.front());
  EXPECT_EQ(names, net.places);
  for (const bool train : {true, false}) {
    const Computed expected = whole_of(net, train);
    for (size_t place = 0; place < places.size(); ++place) {
      const std::string where = names[place] + (train ? ", training: " : ", evaluation: ");
      const Computed made = in_stages(net, place, train);
      ASSERT_EQ(made.outputs.size(), expected.outputs.size()) << where;
      for (size_t i = 0; i < made.outputs.size(); ++i)
        EXPECT_TRUE(at::equal(made.outputs[i], expected.outputs[i])) << where << i;
      expect_equal(made.gradients, expected.gradients, where);
      expect_equal(made.buffers, expected.buffers, where);
    }
  }
}

TEST(ExportedCutGraph, WritesAreFollowedThroughWhatOperatorsAndRegionsGiveBack) {
  const exported::detail::ProgramFile file(kNets / "given_back.pt2");
  const auto graph = exported::detail::cut_graph_of(file, {});
  size_t last = 0;
  for (size_t c = 0; c < graph.calls().size(); ++c)
    if (!graph.calls()[c].writes.empty()) last = c;
  int inputs = 0;
  for (size_t v = 0; v < graph.values().size(); ++v) {
    if (graph.values()[v].origin != exported::CutValue::Origin::user) continue;
    EXPECT_TRUE(graph.is_written(static_cast<int>(v))) << graph.values()[v].name;
    ++inputs;
  }
  EXPECT_EQ(inputs, 6);
  // f: add_ to what unsafe_split gives.
  EXPECT_THAT(graph.why_no_cut(last), HasSubstr("writes into input \"f\""));
}

INSTANTIATE_TEST_SUITE_P(Nets, ExportedInStages, ::testing::ValuesIn(cut_nets()),
                         [](const auto& net) { return net.param.name; });

/// Gradients, to what crosses the last cut, of the sum of all outputs.
std::vector<at::Tensor> gradients_over_the_last_cut(const std::string& name) {
  const auto whole = module_of({name});
  const ExportedCuts cuts(whole);
  const std::vector<exported::CutPlace> at{cuts.begin(), cuts.places().all.back(), cuts.end()};
  const auto first = cuts.stage(at, 0), second = cuts.stage(at, 1);
  std::vector<at::Tensor> taken;
  for (const at::Tensor& one : first->forward_part(some_inputs(*whole)))
    taken.push_back(one.detach().set_requires_grad(true));
  std::vector<at::Tensor> sums;
  for (const at::Tensor& output : second->forward_part(taken)) sums.push_back(output.sum());
  return torch::autograd::grad(sums, taken, {}, std::nullopt, false, true);
}

TEST(ExportedStageGradients, OfWhatGoesByLieInMemoryAsItDoes) {
  const auto gradients = gradients_over_the_last_cut("both");  // "kind" is given already
  ASSERT_EQ(gradients.size(), 2u);
  for (const at::Tensor& gradient : gradients) EXPECT_TRUE(gradient.is_contiguous());
}

TEST(ExportedStageGradients, AreThereForWhatParametersMadeAlone) {
  const auto gradients = gradients_over_the_last_cut("frozen");
  ASSERT_EQ(gradients.size(), 1u);
  EXPECT_FALSE(gradients[0].defined());
}

}  // namespace
}  // namespace tutti
