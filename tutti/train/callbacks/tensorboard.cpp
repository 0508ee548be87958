#include "tutti/train/callbacks/tensorboard.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {

namespace {

void require_frequency(const char* field, int64_t value) {
  if (value < 0)
    throw UsageError(
        fmt::format("callback tensorboard: {} is {}, must be 0 or more", field, value));
}

class TensorBoardEvents final : public Callback {
 public:
  TensorBoardEvents(TensorBoardOptions options, detail::ModelEvents model)
      : options_(std::move(options)), model_(std::move(model)) {
    if (options_.folder.empty()) throw UsageError("callback tensorboard: folder is empty");
    require_frequency("update_freq", options_.update_freq);
    require_frequency("histogram_freq", options_.histogram_freq);
  }

  std::string_view name() const override { return "tensorboard"; }

  void on_train_begin(Training&) override {
    train_.emplace(options_.folder / "train");
    validation_.reset();
    if (model_.begin) model_.begin(*train_);
  }

  void on_step_end(Training& training) override {
    if (options_.update_freq == 0 || training.step() % options_.update_freq != 0) return;
    train_->scalar("batch_learning_rate", training.step(), training.learning_rate());
    for (const auto& [name, value] : training.values())
      train_->scalar("batch_" + name, training.step(), value);
  }

  void on_epoch_end(Training& training) override {
    constexpr std::string_view kValidation = "val_";
    train_->scalar("epoch_learning_rate", training.epoch(), training.learning_rate());
    for (const auto& [name, value] : training.values()) {
      if (!name.starts_with(kValidation)) {
        train_->scalar("epoch_" + name, training.epoch(), value);
        continue;
      }
      if (!validation_) validation_.emplace(options_.folder / "validation");
      validation_->scalar("epoch_" + name.substr(kValidation.size()), training.epoch(), value);
    }
    if (model_.after_epoch) model_.after_epoch(*train_, training.epoch());
    if (options_.after_epoch) options_.after_epoch(*train_, training);
  }

 private:
  TensorBoardOptions options_;
  detail::ModelEvents model_;
  std::optional<EventWriter> train_;
  std::optional<EventWriter> validation_;
};

}  // namespace

std::shared_ptr<Callback> detail::tensorboard_of(TensorBoardOptions options, ModelEvents model) {
  return std::make_shared<TensorBoardEvents>(std::move(options), std::move(model));
}

namespace callbacks {

std::shared_ptr<Callback> tensorboard(std::filesystem::path folder) {
  return tensorboard(TensorBoardOptions{.folder = std::move(folder)});
}

std::shared_ptr<Callback> tensorboard(TensorBoardOptions options) {
  if (options.histogram_freq > 0 || options.write_images)
    throw UsageError(fmt::format(
        "callback tensorboard: {} is of weights: give the model too, tensorboard(model, options)",
        options.histogram_freq > 0 ? "histogram_freq" : "write_images"));
  return detail::tensorboard_of(std::move(options), {});
}

}  // namespace callbacks
}  // namespace tutti
