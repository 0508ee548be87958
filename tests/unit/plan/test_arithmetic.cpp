// Multiply-adds of networks, against published counts; links as people write them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/models/gpt.h"
#include "tutti/models/models.h"
#include "tutti/nn/layers.h"
#include "tutti/plan/arithmetic.h"
#include "tutti/plan/link.h"

#include "tests/support/message_of.h"

namespace tutti::plan {
namespace {

using test::message_of;
using ::testing::HasSubstr;

double giga(const nn::Graph& graph) {
  return static_cast<double>(arithmetic_of(graph).multiply_adds) / 1e9;
}

// torchvision's documentation calls them GFLOPS, with two digits.
TEST(Arithmetic, OfPhotoNetworksIsAsPublished) {
  EXPECT_NEAR(giga(models::alexnet()), 0.71, 0.006);
  EXPECT_NEAR(giga(models::vgg11()), 7.61, 0.006);
  EXPECT_NEAR(giga(models::resnet18()), 1.81, 0.006);
  EXPECT_NEAR(giga(models::resnet50()), 4.09, 0.006);
  EXPECT_NEAR(giga(models::inception_v3()), 5.71, 0.006);
  EXPECT_NEAR(giga(models::vit({.classes = 1000,
                                .input = {3, 224, 224},
                                .patch = 16,
                                .layers = 12,
                                .heads = 12,
                                .hidden = 768,
                                .mlp = 3072})),
              17.56, 0.02);
}

TEST(Arithmetic, OfOneLayerIsCountedByHand) {
  const auto of = [](const nn::Value& in, const nn::Layer& layer) {
    return arithmetic_of(nn::Graph(in, layer(in)));
  };
  EXPECT_EQ(of(nn::input({6}), nn::linear(4)).multiply_adds, 24);
  EXPECT_EQ(of(nn::input({6}), nn::linear(4)).parameters, 28);
  EXPECT_EQ(of(nn::input({6}), nn::linear(4)).largest_parameter, 24);
  EXPECT_EQ(of(nn::input({6}), nn::linear(4)).values, 4);
  EXPECT_EQ(of(nn::input({5, 6}), nn::linear(4)).multiply_adds, 5 * 24);
  // 8 channels out of 5 x 5 places, each from 2 of 4 channels in a window of 3 x 2.
  EXPECT_EQ(of(nn::input({4, 5, 6}), nn::conv2d(8, {3, 2}, {.padding = {1, 0}, .groups = 2}))
                .multiply_adds,
            8 * 5 * 5 * 2 * 6);
  // Two heads of two features: 2 products of 7 x 7 places each.
  EXPECT_EQ(of(nn::input({7, 12}), nn::attention(2)).multiply_adds, 2 * 2 * 7 * 7 * 2);
  EXPECT_EQ(of(nn::input({7, 4}), nn::self_attention(2)).multiply_adds,
            2 * 7 * 7 * 4 + 4 * 7 * 4 * 4);
  EXPECT_EQ(of(nn::input({7}), nn::relu()).multiply_adds, 0);
  EXPECT_EQ(of(nn::input({9, 4}), nn::conv1d(6, 3, {.groups = 2})).multiply_adds, 7 * 6 * 2 * 3);
  // Each of 4 x 5 x 6 elements goes into a window of 3 x 2 of 7 channels.
  EXPECT_EQ(of(nn::input({4, 5, 6}), nn::conv_transpose2d(7, {3, 2}, {.stride = 2})).multiply_adds,
            4 * 5 * 6 * 7 * 3 * 2);
  EXPECT_EQ(of(nn::input({5, 4}), nn::conv_transpose1d(7, 3)).multiply_adds, 5 * 4 * 7 * 3);
  // 9 steps, 4 gates of 5 units, from 3 features and 5 units.
  EXPECT_EQ(of(nn::input({9, 3}), nn::lstm(5)).multiply_adds, 9 * 4 * 5 * (3 + 5));
  // The second layer has both directions of the first as its features.
  EXPECT_EQ(of(nn::input({9, 3}), nn::gru(5, {.layers = 2, .bidirectional = true})).multiply_adds,
            9 * 2 * 3 * 5 * ((3 + 5) + (10 + 5)));
}

// Kaplan et al. 2020, arXiv 2001.08361: 2 N + 2 n_layer n_ctx d_model operations a token, of
// parameters N without embeddings; a head is one more product.
TEST(Arithmetic, OfGptIsTheScalingLaws) {
  const int64_t layers = 3, context = 8, features = 16, words = 11;
  const auto counted = arithmetic_of(models::gpt({.vocabulary = words,
                                                  .context = context,
                                                  .layers = layers,
                                                  .heads = 2,
                                                  .features = features}));
  const int64_t dense = layers * 12 * features * features;
  EXPECT_EQ(counted.multiply_adds,
            context * (dense + 2 * layers * context * features + words * features));
}

TEST(Link, IsReadAsPeopleWriteIt) {
  EXPECT_DOUBLE_EQ(parse_link("25Gbit,20us").bytes_per_second, 25e9 / 8);
  EXPECT_DOUBLE_EQ(parse_link("25Gbit,20us").latency, 20e-6);
  EXPECT_DOUBLE_EQ(parse_link("1.5GB,0ns").bytes_per_second, 1.5e9);
  EXPECT_DOUBLE_EQ(parse_link("50Mbit,2ms").latency, 2e-3);
  EXPECT_EQ(words_of(parse_link("25Gbit,20us")), "25 Gbit/s, 20 us");
  EXPECT_EQ(words_of(parse_link("125MB,1.5s")), "1 Gbit/s, 1.5 s");
  for (const auto& [text, what] :
       std::vector<std::pair<const char*, const char*>>{{"25,20us", "rate has no unit"},
                                                        {"25Gbit,20", "latency has no unit"},
                                                        {"25Gbit", "not a rate and a latency"},
                                                        {"0Gbit,1us", "not above 0"},
                                                        {"-1Gbit,1us", "not above 0"},
                                                        {"1Gbit,-1us", "below 0"},
                                                        {"1e300Tbit,1us", "no link is like that"},
                                                        {"1Gbit,1e9s", "no link is like that"},
                                                        {"nanGbit,1us", "rate has no unit"},
                                                        {"Gbit,1us", "rate has no unit"},
                                                        {"", "not a rate"}})
    EXPECT_THAT(message_of<UsageError>([&, words = text] { parse_link(words); }), HasSubstr(what))
        << text;
}

}  // namespace
}  // namespace tutti::plan
