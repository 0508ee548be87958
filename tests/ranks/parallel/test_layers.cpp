// Layers in blocks: a small transformer against plain torch, with the same bits for any number of
// ranks, with its sequence whole and in parts; errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "tutti/parallel/tensor/attention.h"
#include "tutti/parallel/tensor/cross_entropy.h"
#include "tutti/parallel/tensor/mlp.h"

#include "tests/support/message_of.h"
#include "tests/support/tensor_ranks.h"

namespace tutti::parallel {
namespace {

using test::errors_of_tensor_ranks;
using test::message_of;
using test::on_tensor_ranks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Tensors = std::map<std::string, at::Tensor>;

// Hidden units and words do not divide by 4.
constexpr int64_t kFeatures = 32, kHeads = 4, kHidden = 70, kVocabulary = 65;
constexpr int64_t kBatch = 3, kLength = 9;

at::Tensor some_tokens(int shift) {
  return at::remainder(at::arange(kBatch * kLength, at::kLong) * 37 + shift, kVocabulary)
      .view({kBatch, kLength});
}

/// The model that the others are held against; shares no line with them.
struct PlainTransformer : torch::nn::Module {
  PlainTransformer() {
    register_module("words", words);
    register_module("norm", norm);
    register_module("attend", attend);
    register_module("up", up);
    register_module("down", down);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) {
    at::Tensor x = words(tokens).transpose(0, 1);
    const at::Tensor mask = at::full({kLength, kLength}, -INFINITY).triu(1);
    const at::Tensor y = norm(x);
    x = x + std::get<0>(attend(y, y, y, at::Tensor(), false, mask));
    x = x + down(at::gelu(up(norm(x))));
    const at::Tensor logits = head(x).transpose(0, 1).reshape({-1, kVocabulary});
    return at::cross_entropy_loss(logits, targets.reshape({-1}));
  }
  torch::nn::Embedding words{kVocabulary, kFeatures};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kFeatures})};
  torch::nn::MultiheadAttention attend{kFeatures, kHeads};
  torch::nn::Linear up{kFeatures, kHidden}, down{kHidden, kFeatures}, head{kFeatures, kVocabulary};
};

struct Transformer : torch::nn::Module {
  explicit Transformer(const TensorGroup& group)
      : words(group, kVocabulary, kFeatures, {.seed = 5, .name = "words"}),
        attend(group, {.features = kFeatures, .heads = kHeads, .causal = true},
               {.seed = 5, .name = "attend"}),
        mlp(group, {.features = kFeatures, .hidden = kHidden}, {.seed = 5, .name = "mlp"}),
        head(group, {kFeatures, kVocabulary}, {.seed = 5, .name = "head"}) {
    register_module("words", words);
    register_module("norm", norm);
    register_module("attend", attend);
    register_module("mlp", mlp);
    register_module("head", head);
  }
  virtual at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) {
    at::Tensor x = words(tokens);
    x = x + attend(norm(x));
    x = x + mlp(norm(x));
    return cross_entropy(head->group(), head(x), targets).mean();
  }
  Embedding words;
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kFeatures})};
  SelfAttention attend;
  Mlp mlp;
  ColumnLinear head;
};

/// The same with the sequence in parts between the layers.
struct SequenceTransformer : Transformer {
  using Transformer::Transformer;
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) override {
    const TensorGroup& group = head->group();
    Blocks x = part_of(group, words(tokens), 1);
    x = plus(x, attend->forward_sequence(normed(x)));
    x = plus(x, mlp->forward_sequence(normed(x), 1));
    return cross_entropy(group, head->of_copies(sequence_all_gather(group, x, 1)), targets).mean();
  }
  Blocks normed(Blocks x) {
    const Blocks weights = copy_to(head->group(), norm->weight);
    const Blocks biases = copy_to(head->group(), norm->bias);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = at::layer_norm(x[i], {kFeatures}, weights[i], biases[i]);
    return x;
  }
  static Blocks plus(Blocks x, const Blocks& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] + y[i];
    return x;
  }
};

/// What is left of training on one rank.
struct Trained {
  float loss = 0;     // of the first step
  Tensors gradients;  // of the first step
  Tensors weights;    // before the first step
  Tensors end;        // after the last one
  std::map<std::string, Piece> pieces;
};

Tensors copies_of_parameters(torch::nn::Module& module, bool gradients) {
  Tensors copies;
  for (const auto& item : module.named_parameters())
    copies[item.key()] = gradients ? item.value().grad().clone() : item.value().detach().clone();
  return copies;
}

template <class Net>
Trained trained(Net& net, int steps) {
  Trained result{.weights = copies_of_parameters(net, false)};
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = net.forward(some_tokens(step), some_tokens(step + 11));
    loss.backward();
    if (step == 0) result.loss = loss.template item<float>();
    if (step == 0) result.gradients = copies_of_parameters(net, true);
    optimizer.step();
  }
  result.end = copies_of_parameters(net, false);
  return result;
}

template <class Net>
std::vector<Trained> trained_on(int ranks, int steps, const std::string& engine = "shm") {
  return on_tensor_ranks(
      ranks, 4,
      [&](const TensorGroup& group) {
        Net net(group);
        Trained result = trained(net, steps);
        result.pieces = pieces_of(net);
        return result;
      },
      engine);
}

/// The whole model's tensor, as a rank has it.
at::Tensor rank_s(const Trained& rank, const std::string& name, const at::Tensor& whole) {
  const auto piece = rank.pieces.find(name);
  return piece == rank.pieces.end() ? whole : piece_of(whole, piece->second);
}

void expect_same_bits(const Trained& rank, const Trained& one) {
  EXPECT_EQ(rank.loss, one.loss);
  ASSERT_EQ(rank.end.size(), one.end.size());
  for (const auto& [name, end] : one.end) {
    EXPECT_TRUE(at::equal(rank.weights.at(name), rank_s(rank, name, one.weights.at(name))))
        << name << " at the start";
    EXPECT_TRUE(at::equal(rank.gradients.at(name), rank_s(rank, name, one.gradients.at(name))))
        << "gradient of " << name;
    EXPECT_TRUE(at::equal(rank.end.at(name), rank_s(rank, name, end))) << name << " at the end";
  }
}

std::string name_of_plain(const std::string& name) {
  return name.starts_with("up.") || name.starts_with("down.") ? "mlp." + name : name;
}

float norm_of(const at::Tensor& x) { return x.norm().item<float>(); }

template <class Net>
class Transformers : public ::testing::Test {};
using Kinds = ::testing::Types<Transformer, SequenceTransformer>;
TYPED_TEST_SUITE(Transformers, Kinds);

TYPED_TEST(Transformers, AnyNumberOfRanksHasTheSameBits) {
  const Trained one = trained_on<TypeParam>(1, 3)[0];
  for (const int ranks : {2, 3, 4})
    for (const Trained& rank : trained_on<TypeParam>(ranks, 3)) {
      SCOPED_TRACE(ranks);
      expect_same_bits(rank, one);
    }
}

TYPED_TEST(Transformers, AnyEngineHasTheSameBits) {
  const Trained one = trained_on<TypeParam>(1, 1)[0];
  for (const std::string engine : {"shm staged", "tcp"})
    for (const int ranks : {2, 3})
      for (const Trained& rank : trained_on<TypeParam>(ranks, 1, engine)) {
        SCOPED_TRACE(engine);
        expect_same_bits(rank, one);
      }
}

TYPED_TEST(Transformers, GradientsAreThoseOfPlainTorch) {
  const Trained one = trained_on<TypeParam>(1, 1)[0];
  PlainTransformer plain;
  {
    const torch::NoGradGuard no_grad;
    for (const auto& item : plain.named_parameters()) {
      const at::Tensor& weight = one.weights.at(name_of_plain(item.key()));
      ASSERT_EQ(item.value().sizes(), weight.sizes()) << item.key() << " has torch's shape";
      item.value().copy_(weight);
    }
  }
  const Trained expected = trained(plain, 1);
  EXPECT_EQ(expected.gradients.size(), one.gradients.size());
  EXPECT_NEAR(one.loss, expected.loss, 1e-5 * expected.loss);
  for (const auto& [name, gradient] : expected.gradients)
    EXPECT_LE(norm_of(one.gradients.at(name_of_plain(name)) - gradient), 1e-5 * norm_of(gradient))
        << name;
}

TEST(Layers, BiasOfRowsIsAddedOnce) {
  for (const at::Tensor& y : on_tensor_ranks(2, 4, [](const TensorGroup& group) {
         RowLinear rows(group, {8, 3}, {.seed = 1, .name = "rows"});
         const torch::NoGradGuard no_grad;
         rows->bias.fill_(2);
         return rows(part_of(group, at::zeros({5, 8})));
       }))
    EXPECT_TRUE(at::equal(y, at::full({5, 3}, 2)));
}

// Of 2^19 multiplications and more, for which kernels of their own are chosen; blocks that do not
// begin on a 64-byte line of the rank's parameter.
TEST(Layers, LargeProductsHaveTheSameBitsToo) {
  struct LargeMlp : torch::nn::Module {
    explicit LargeMlp(const TensorGroup& group)
        : mlp(group, {.features = 250, .hidden = 1021}, {.seed = 1, .name = "mlp"}) {
      register_module("mlp", mlp);
    }
    at::Tensor forward(const at::Tensor& tokens, const at::Tensor&) {
      const at::Tensor x = at::arange(70 * 250, at::kFloat).view({70, 250}) * 0.37;
      return mlp((x + tokens.sum()).sin()).pow(2).mean();
    }
    Mlp mlp;
  };
  const Trained one = trained_on<LargeMlp>(1, 2)[0];
  for (const int ranks : {2, 3, 4})
    for (const Trained& rank : trained_on<LargeMlp>(ranks, 2)) {
      SCOPED_TRACE(ranks);
      expect_same_bits(rank, one);
    }
}

TEST(Layers, WithoutBiasHaveNone) {
  const TensorGroup one(2);
  ColumnLinear columns(one, torch::nn::LinearOptions(4, 6).bias(false), {.seed = 1, .name = "c"});
  RowLinear rows(one, torch::nn::LinearOptions(6, 4).bias(false), {.seed = 1, .name = "r"});
  EXPECT_EQ(columns->parameters().size() + rows->parameters().size(), 2);
  EXPECT_EQ(rows(columns(at::ones({2, 4}))).sizes(), at::IntArrayRef({2, 4}));
  EXPECT_EQ(rows->forward_sequence(columns(at::ones({2, 4})), 0).size(), 2);
}

TEST(Layers, ActivationsAreTheUsersOwn) {
  const TensorGroup one(2);
  Mlp mlp(one,
          {.features = 4,
           .hidden = 6,
           .activation = [](const at::Tensor& x) { return at::zeros_like(x); }},
          {.seed = 1, .name = "mlp"});
  EXPECT_TRUE(at::equal(mlp(at::ones({2, 4})), mlp->down->bias.expand({2, 4})));
}

// ---- errors ----

template <class Body>
std::string error_on(int blocks, const Body& body) {
  return errors_of_tensor_ranks(1, blocks, body)[0];
}

TEST(LayerErrors, HeadsThatDoNotDivideListWhatIsPossible) {
  const auto error = [](int64_t features, int64_t heads, int blocks) {
    return error_on(blocks, [&](const TensorGroup& group) {
      SelfAttention(group, {.features = features, .heads = heads}, {.seed = 1, .name = "attend"});
    });
  };
  EXPECT_THAT(error(12, 6, 4),
              HasSubstr("UsageError: layer attend: 6 heads on tensor = 4 (possible: 1, 2, 3, 6)"));
  EXPECT_THAT(error(12, 5, 1), HasSubstr("5 heads, must be 1 or more and divide 12 features"));
  EXPECT_THAT(error(12, 0, 1), HasSubstr("0 heads"));
}

TEST(LayerErrors, FewerElementsThanBlocks) {
  EXPECT_THAT(error_on(4,
                       [](const TensorGroup& group) {
                         Embedding(group, 3, 8, {.seed = 1, .name = "words"});
                       }),
              HasSubstr("UsageError: layer words: 3 elements on 4 blocks"));
  EXPECT_THAT(error_on(4,
                       [](const TensorGroup& group) {
                         ColumnLinear(group, {8, 2}, {.seed = 1, .name = "up"});
                       }),
              HasSubstr("layer up: 2 elements on 4 blocks"));
}

TEST(LayerErrors, TokensThatAreNoWords) {
  Embedding words(TensorGroup(2), 65, 8, {.seed = 1, .name = "words"});
  EXPECT_THAT(message_of<DataError>([&] { words(torch::tensor({3, 65}, at::kLong)); }),
              HasSubstr("parallel::Embedding: element 1 is 65, expected 0 to 64"));
  EXPECT_THAT(message_of<DataError>([&] { words(torch::tensor({-1}, at::kInt)); }),
              HasSubstr("element 0 is -1"));
  EXPECT_THAT(message_of<UsageError>([&] { words(at::ones({2})); }),
              HasSubstr("parallel::Embedding: got CPUFloatType"));
}

TEST(LayerErrors, AnotherNumberOfBlocks) {
  EXPECT_THAT(error_on(2,
                       [](const TensorGroup& group) {
                         RowLinear(group, {8, 2},
                                   {.seed = 1, .name = "down"})(Blocks{at::ones({1, 8})});
                       }),
              HasSubstr("UsageError: layer down: got 1 blocks, rank 0 of 1 has 2"));
}

TEST(LayerErrors, ABatchOfAnotherSizeNamesTheRank) {
  EXPECT_THAT(errors_of_tensor_ranks(2, 2,
                                     [](const TensorGroup& group) {
                                       Mlp mlp(group, {.features = 4, .hidden = 8},
                                               {.seed = 1, .name = "mlp"});
                                       mlp(at::ones({3 + group.rank(), 4}));
                                     }),
              Each(AllOf(HasSubstr("Mismatch: copy_to: rank 1 of 2 calls copy_to of Float [4, 4]"),
                         HasSubstr("rank 0 calls copy_to of Float [3, 4]"))));
}

}  // namespace
}  // namespace tutti::parallel
