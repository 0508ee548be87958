/// An engine that moves nothing: it keeps what reached it, for tests of what stands above engines.
#pragma once

#include <memory>
#include <vector>

#include "tutti/comm/engine/engine.h"

namespace tutti::test {

class FakeEngine final : public Engine {
 public:
  FakeEngine(int rank, int size) : rank_(rank), size_(size), shape_(ReductionShape::flat(size)) {}

  std::vector<Collective> submitted, run_at_once;

  std::string_view name() const noexcept override { return "fake"; }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const ReductionShape& reduction_shape() const noexcept override { return shape_; }
  bool one_process() const noexcept override { return true; }
  Ticket submit(std::span<const Operation> batch) override {
    for (const Operation& operation : batch) submitted.push_back(operation.collective);
    return submitted.size();
  }
  void progress(Ticket, const Deadline&) override {}
  bool poll(Ticket) override { return true; }
  void run(const Operation& operation) override { run_at_once.push_back(operation.collective); }
  void abort(FailureKind, const std::string&) noexcept override {}
  std::shared_ptr<Engine> split(int color, int, Millis) override {
    return color < 0 ? nullptr : std::make_shared<FakeEngine>(rank_, size_);
  }
  SharedParts allocate(int64_t, Millis) override { return {}; }

 private:
  int rank_;
  int size_;
  ReductionShape shape_;
};

}  // namespace tutti::test
