// Python's arithmetic on sizes, against values that Python gives.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "tutti/exported/detail/numbers.h"
#include "tutti/exported/detail/served.h"

#include "tests/support/expect.h"

namespace tutti::exported::detail {
namespace {

using c10::IValue;

IValue computed(std::string_view target, std::vector<IValue> numbers) {
  const NumberOperator* found = number_operator(target);
  EXPECT_NE(found, nullptr) << target;
  EXPECT_EQ(found->arity, numbers.size()) << target;
  return found->compute(numbers);
}

TEST(Numbers, WholeOnesAreAsPythonHasThem) {
  struct Row {
    const char* target;
    int64_t a, b, expected;
  };
  for (const Row& row : {Row{"_operator.add", 3, 4, 7}, Row{"_operator.sub", 3, 4, -1},
                         Row{"_operator.mul", -3, 4, -12}, Row{"_operator.floordiv", 7, 2, 3},
                         Row{"_operator.floordiv", -7, 2, -4}, Row{"_operator.floordiv", 7, -2, -4},
                         Row{"_operator.mod", -7, 2, 1}, Row{"_operator.mod", 7, -2, -1},
                         Row{"_operator.pow", 2, 10, 1024}, Row{"_operator.pow", 1, 1 << 30, 1},
                         Row{"torch.sym_max", 3, 4, 4}, Row{"torch.sym_min", 3, 4, 3}}) {
    const IValue got = computed(row.target, {row.a, row.b});
    ASSERT_TRUE(got.isInt()) << row.target;
    EXPECT_EQ(got.toInt(), row.expected) << row.target << row.a << " " << row.b;
  }
  EXPECT_EQ(computed("_operator.neg", {int64_t{5}}).toInt(), -5);
  EXPECT_EQ(computed("math.trunc", {-2.5}).toInt(), -2);
  EXPECT_EQ(computed("math.floor", {-2.5}).toInt(), -3);
  EXPECT_EQ(computed("math.ceil", {-2.5}).toInt(), -2);
}

TEST(Numbers, RealOnesAndTruthValuesToo) {
  EXPECT_EQ(computed("_operator.truediv", {int64_t{1}, int64_t{2}}).toDouble(), 0.5);
  EXPECT_EQ(computed("_operator.mul", {0.5, int64_t{3}}).toDouble(), 1.5);
  EXPECT_EQ(computed("_operator.floordiv", {-7.0, int64_t{2}}).toDouble(), -4);
  EXPECT_EQ(computed("_operator.mod", {-7.0, int64_t{2}}).toDouble(), 1);
  EXPECT_EQ(computed("torch.sym_float", {int64_t{3}}).toDouble(), 3);
  EXPECT_EQ(computed("torch._sym_sqrt", {int64_t{16}}).toDouble(), 4);
  EXPECT_TRUE(computed("_operator.lt", {int64_t{1}, 1.5}).toBool());
  EXPECT_FALSE(computed("_operator.ne", {int64_t{2}, 2.0}).toBool());
  EXPECT_TRUE(computed("_operator.and_", {true, true}).toBool());
  EXPECT_TRUE(computed("torch.sym_not", {false}).toBool());
  EXPECT_EQ(computed("torch.sym_ite", {true, int64_t{4}, int64_t{5}}).toInt(), 4);
}

TEST(Numbers, WhatDoesNotFitIsAnError) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  const auto refused = [](std::string_view target, std::vector<IValue> numbers) {
    EXPECT_THAT(message_of<UsageError>([&] { computed(target, numbers); }),
                HasSubstr("a size that the graph computes"))
        << target;
  };
  refused("_operator.add", {kMost, int64_t{1}});
  refused("_operator.sub", {kLeast, int64_t{1}});
  refused("_operator.mul", {kMost, int64_t{2}});
  refused("_operator.pow", {int64_t{2}, int64_t{64}});
  refused("_operator.pow", {int64_t{-3}, kMost});
  refused("_operator.neg", {kLeast});
  refused("_operator.floordiv", {int64_t{1}, int64_t{0}});
  refused("_operator.mod", {kLeast, int64_t{-1}});
  refused("math.trunc", {std::nan("")});
  refused("math.floor", {1e300});
  EXPECT_EQ(number_operator("_operator.matmul"), nullptr);
}

TEST(ServedOperators, AreOfAtenWithoutWhatReachesFilesStoragesAndMemory) {
  const auto why = [](const char* target) { return why_refused(operator_words(target)); };
  for (const char* target :
       {"torch.ops.aten.conv2d.default", "torch.ops.aten.add_.Tensor",
        "torch.ops.aten._assert_scalar.default",
        "torch.ops.aten.fake_quantize_per_tensor_affine.default", "torch.ops.higher_order.cond",
        "torch.ops.higher_order.wrap_with_autocast"})
    EXPECT_EQ(why(target), "") << target;
  for (const char* target :
       {"torch.ops.aten.from_file.default", "torch.ops.aten.set_.source_Storage",
        "torch.ops.aten.set_data.default", "torch.ops.aten._reshape_alias.default",
        "torch.ops.aten._nested_view_from_buffer.default",
        "torch.ops.aten._sparse_coo_tensor_unsafe.default",
        "torch.ops.aten.fbgemm_linear_fp16_weight.default",
        "torch.ops.aten.embedding_dense_backward.default", "torch.ops.aten._print.default",
        "torch.ops.prim.device.default", "torch.ops.mylib.op.default",
        "torch.ops.inductor.resize_storage_bytes_.default", "torch.ops.higher_order.while_loop",
        // On no list: what another LibTorch may bring.
        "torch.ops.aten.of_another_version.default", "torch.ops.aten.lu_unpack.default",
        "torch.ops.aten._embedding_bag.default"})
    EXPECT_NE(why(target), "") << target;
  EXPECT_EQ(operator_words("torch.ops.aten.add.Tensor").text(), "aten::add.Tensor");
  EXPECT_EQ(operator_words("torch.ops.aten.relu.default").text(), "aten::relu");
  EXPECT_EQ(operator_words("_operator.mul").name, "");
}

// A name that is misspelled would be refused for ever.
TEST(ServedOperators, AreNamesOfLibTorch) {
  EXPECT_TRUE(std::ranges::is_sorted(served_names()));
  std::set<std::string> known;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    if (name.name.starts_with("aten::")) known.insert(name.name.substr(6));
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
  for (const std::string_view name : served_names())
    EXPECT_TRUE(known.contains(std::string(name))) << name;
#endif
  EXPECT_TRUE(known.contains("conv2d"));
}

}  // namespace
}  // namespace tutti::exported::detail
