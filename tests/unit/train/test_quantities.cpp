// Names of what is measured: none is there twice.
#include <torch/torch.h>

#include "tests/support/expect.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

Model scored() {
  return Model(strategy_of("one_device", 1), [] { return torch::nn::Linear(4, 3); });
}

std::string refusal(CompileOptions options) {
  return message_of<UsageError>([&] { scored().compile(options); });
}

TEST(Quantities, OfOneOutputHaveUnlikeNames) {
  const auto loss = losses::sparse_categorical_crossentropy();
  EXPECT_THAT(refusal({.loss = loss, .metrics = {metrics::accuracy(), metrics::accuracy()}}),
              AllOf(HasSubstr("two quantities called \"accuracy\""), HasSubstr(".named(")));
  EXPECT_THAT(refusal({.loss = loss,
                       .metrics = {metrics::confusion_matrix(), metrics::confusion_matrix()}}),
              HasSubstr("\"confusion_matrix\""));
  for (const auto* name : {"loss", "train_loss", "val_loss", "seconds", "images_per_second"})
    EXPECT_THAT(refusal({.loss = loss, .metrics = {metrics::accuracy().named(name)}}),
                HasSubstr(fmt::format("two quantities called \"{}\"", name)));
  EXPECT_THAT(
      refusal({.loss = loss,
               .metrics = {metrics::accuracy(), metrics::top_k_accuracy(2).named("val_accuracy")}}),
      HasSubstr("\"val_accuracy\""));
  Model model = scored();
  model.compile(
      {.loss = loss, .metrics = {metrics::accuracy(), metrics::accuracy().named("again")}});
  const History history = model.fit(three_classes(12).batch(6), {.verbose = 0});
  EXPECT_EQ(history.column("accuracy"), history.column("again"));
}

TEST(Quantities, OfSeveralOutputsAreThoseWithTheOutputsName) {
  const auto with = [](const std::string& first, const std::string& second, const Metric& metric) {
    const auto loss = losses::sparse_categorical_crossentropy();
    return CompileOptions{.outputs = {{.name = first, .loss = loss, .metrics = {metric}},
                                      {.name = second, .loss = loss, .metrics = {metric}}}};
  };
  scored().compile(with("a", "b", metrics::accuracy()));
  EXPECT_THAT(refusal(with("a", "b", metrics::accuracy().named("loss"))), HasSubstr("\"a_loss\""));
  for (const auto* name : {"train", "val"})
    EXPECT_THAT(refusal(with(name, "b", metrics::accuracy())),
                HasSubstr("give the output another name"));
}

}  // namespace
}  // namespace tutti
