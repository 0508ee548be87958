/// LateState: what stands behind a Model, made as soon as what goes into its stages is known: at
/// once, or with the first data. Copies share it. Not for users. Thread rule: that of Model.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {

namespace data {
class Dataset;
}

namespace detail {

/// Stages of a Sequential, whose layers do not say what goes in (ModelLayout::input).
class NeedsSample : public UsageError {
 public:
  NeedsSample();
};

template <class State, class Options>
class LateState {
 public:
  /// Of a sample of the data; of what the caller has said where there is none.
  using Make = std::function<std::shared_ptr<State>(const data::Dataset* data)>;

  explicit LateState(Make make) : shared_(std::make_shared<Shared>()) {
    try {
      shared_->state = make(nullptr);
    } catch (const NeedsSample&) {
      shared_->make = std::move(make);
    }
  }

  bool made() const noexcept { return shared_->state != nullptr; }
  void make(const data::Dataset& data) { shared_->state = shared_->make(&data); }

  /// What compile() was given before it could be done.
  std::optional<Options>& asked() const noexcept { return shared_->asked; }

  /// NeedsSample as long as it is not made.
  State& operator*() const {
    if (!made()) throw NeedsSample();
    return *shared_->state;
  }
  State* operator->() const { return &**this; }

 private:
  struct Shared {
    std::shared_ptr<State> state;
    Make make;
    std::optional<Options> asked;
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace detail
}  // namespace tutti
