// Networks that torch.export saved train as they do in eager PyTorch, whose losses, gradients,
// parameters and buffers over five steps stand beside them (tests/tables/exported).
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/random.h"
#include "tutti/data/safetensors.h"
#include "tutti/exported/from_export.h"
#include "tutti/exported/module.h"
#include "tutti/nn/sample_context.h"
#include "tutti/sync/tensors.h"

#include "tests/support/expect.h"
#include "tests/support/exported_step/against_eager.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

const std::filesystem::path kExported = "tests/tables/exported";

struct Net {
  std::string name;
  std::vector<std::string> inputs, outputs;
  // The CPU that made the references gives equal bits. Kernels of others round otherwise: 7e-7 was
  // seen with those for SSE4.1 and AVX2; those of bfloat16 round to 8 bits.
  double bound = 3e-6;
};

class AgainstEagerTest : public ::testing::TestWithParam<Net> {
 protected:
  std::filesystem::path net() const { return kExported / (GetParam().name + ".pt2"); }
  std::filesystem::path eval() const { return kExported / (GetParam().name + ".eval.pt2"); }
  std::filesystem::path reference() const { return kExported / (GetParam().name + ".safetensors"); }
};

TEST_P(AgainstEagerTest, TrainsAsEagerPyTorchDoes) {
  const AgainstEager found = against_eager(net(), reference());
  EXPECT_LE(found.worst(), GetParam().bound) << found.json();
  EXPECT_THAT(found.missing, IsEmpty());
  EXPECT_GE(found.tensors, 5 + 1 + 2 + 2) << found.json();
  RecordProperty("equal_bits", found.equal ? "yes" : "no");
}

TEST_P(AgainstEagerTest, NamesAreThoseOfPython) {
  const auto module = from_export(net())();
  EXPECT_EQ(module->input_names(), GetParam().inputs);
  EXPECT_EQ(module->output_names(), GetParam().outputs);
}

TEST_P(AgainstEagerTest, ByNameAndInOrderAreTheSame) {
  const auto file = data::read_safetensors(reference());
  const auto made = from_export(net());
  const auto in_order = made(), by_name = made();
  std::vector<at::Tensor> inputs;
  std::map<std::string, at::Tensor> named;
  for (const std::string& name : in_order->input_names()) {
    const auto* input = file.find("step1.input." + std::to_string(inputs.size()));
    ASSERT_NE(input, nullptr);
    inputs.push_back(tensor_of(*input).clone());
    named[name] = inputs.back().clone();
  }
  torch::manual_seed(5);
  const auto all = in_order->forward_all(inputs);
  torch::manual_seed(5);
  const auto of_names = by_name->forward_named(named);
  ASSERT_EQ(all.size(), of_names.size());
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_TRUE(at::equal(all[i], of_names.at(in_order->output_names()[i]))) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Files, AgainstEagerTest,
    ::testing::Values(
        Net{"mlp", {"x"}, {"output"}}, Net{"cnn", {"x"}, {"output"}},
        Net{"gpt", {"ids"}, {"output"}}, Net{"lstm", {"ids"}, {"output"}},
        Net{"control", {"x"}, {"logits", "seen"}}, Net{"autocast", {"x"}, {"output"}, 0.02},
        Net{"frozen", {"x"}, {"output"}}, Net{"dlrm", {"dense", "ids"}, {"output"}},
        Net{"named", {"batch.ids", "batch.numbers", "scale"}, {"0", "1.norm", "1.features"}},
        Net{"mobile", {"x"}, {"output"}}, Net{"unet", {"x"}, {"output"}},
        Net{"vit", {"x"}, {"output"}}),
    [](const auto& info) { return info.param.name; });

TEST(AgainstEagerItself, FindsWhatDiffers) {
  auto file = data::read_safetensors(kExported / "mlp.safetensors");
  file.metadata.at("rate") = "0.06";
  const TempFolder folder;
  data::write_safetensors(folder / "other.safetensors", file.arrays, file.metadata);
  const AgainstEager found = against_eager(kExported / "mlp.pt2", folder / "other.safetensors");
  EXPECT_FALSE(found.equal);
  EXPECT_GT(found.final, 1e-4);
  EXPECT_LE(found.gradients, 1e-6) << "of the first step, before any update";
}

// ---- random numbers (drawn.pt2: five draws, of which the last is multiplied by x) ----

using Draws = std::map<std::string, at::Tensor>;

Draws drawn(ExportedModule& net, const at::Tensor& x, std::optional<nn::SamplePlace> place) {
  std::optional<nn::SampleContext> context;
  if (place) context.emplace(*place);
  return net.forward_named({{"x", x}});
}

at::Tensor rand_of(uint64_t key, at::IntArrayRef sizes) {
  return at::rand(sizes, at::make_generator<at::CPUGeneratorImpl>(key));
}

uint64_t within(uint64_t key, std::initializer_list<uint64_t> parts) {
  return random_key(key, RandomPurpose::operators, parts);
}

TEST(ExportedDraws, AreOfThePlaceAndOfTheirNumberInTheGraph) {
  const auto net = from_export(kExported / "drawn.pt2")();
  const auto before = at::detail::getDefaultCPUGenerator().get_state();
  for (const int sign : {1, -1}) {
    const at::Tensor x = at::full({5, 3}, double(sign));
    const Draws got = drawn(*net, x, nn::SamplePlace{.seed = 7, .step = 3, .first_row = 12});
    const uint64_t here = within(7, {3, 12});
    // The graphs within are inputs 1 of no_grad, 1 and 2 of cond.
    const uint64_t no_grad = within(here, {2, 1}), branch = within(here, {3, sign > 0 ? 1U : 2U});
    const Draws expected{{"first", rand_of(within(here, {0}), {5, 3})},
                         {"second", rand_of(within(here, {1}), {5, 3})},
                         {"within", rand_of(within(no_grad, {0}), {5, 3})},
                         {"again", rand_of(within(no_grad, {1}), {5, 3})},
                         {"branch", x * rand_of(within(branch, {0}), {5, 3})}};
    for (const auto& [name, numbers] : expected) {
      EXPECT_TRUE(at::equal(got.at(name), numbers)) << name;
      for (const auto& [other, others] : expected)
        EXPECT_EQ(at::equal(numbers.abs(), others.abs()), name == other) << name << other;
    }
  }
  EXPECT_TRUE(at::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
}

TEST(ExportedDraws, DifferByEachPartOfThePlace) {
  const auto net = from_export(kExported / "drawn.pt2")();
  const at::Tensor x = at::ones({5, 3});
  const std::vector<nn::SamplePlace> places{{7, 3, 12}, {8, 3, 12}, {7, 4, 12}, {7, 3, 13}};
  for (const auto& one : places)
    for (const auto& other : places) {
      const bool same = &one == &other;
      const Draws first = drawn(*net, x, one), second = drawn(*net, x, other);
      for (const auto& [name, numbers] : first)
        EXPECT_EQ(at::equal(numbers, second.at(name)), same) << name;
    }
}

TEST(ExportedDraws, OutsideOfAPlaceAreThoseOfTheGenerator) {
  const auto net = from_export(kExported / "drawn.pt2")();
  torch::manual_seed(5);
  const Draws got = drawn(*net, at::ones({5, 3}), {});
  torch::manual_seed(5);
  for (const char* name : {"first", "second", "within", "again", "branch"})
    EXPECT_TRUE(at::equal(got.at(name), at::rand({5, 3}))) << name;
}

}  // namespace
}  // namespace tutti
