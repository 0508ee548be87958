// The conformance suite of tests/ranks/comm inside one rank of an MPI job. Its bodies run all
// members of a group as threads and compare what each holds. Here every process does: its own rank
// through engine mpi, the others through shm, which the suite holds to the same bits. The processes
// run the same tests in the same order, so the members of engine mpi meet.
#include <map>

#include "tutti/comm/mpi/mpi.h"

#include "tests/ranks/comm/conformance.h"

namespace tutti::test {
namespace {

/// This process's rank: operations go through engine mpi, and, on copies of their buffers, through
/// the rank's place among the threads, who wait for it there.
class BesideThreads final : public Engine {
 public:
  BesideThreads(std::shared_ptr<Engine> mpi, std::shared_ptr<Engine> thread)
      : mpi_(std::move(mpi)), thread_(std::move(thread)) {}

  std::string_view name() const noexcept override { return mpi_->name(); }
  int rank() const noexcept override { return mpi_->rank(); }
  int size() const noexcept override { return mpi_->size(); }
  const ReductionShape& reduction_shape() const noexcept override {
    return mpi_->reduction_shape();
  }
  bool one_process() const noexcept override { return mpi_->one_process(); }

  Ticket submit(std::span<const Operation> batch) override {
    Both& both = tickets_[++last_];
    std::vector<Operation> copies(batch.begin(), batch.end());
    for (Operation& operation : copies)
      for (MemorySpan* span : {&operation.input, &operation.output}) {
        if (span->num_elements == 0) continue;
        const auto* const from = static_cast<const unsigned char*>(span->data);
        both.memory.push_back(std::make_unique<Bytes>(from, from + span->num_bytes()));
        span->data = both.memory.back()->data();
      }
    both.thread = thread_->submit(copies);
    both.mpi = mpi_->submit(batch);
    return last_;
  }

  void progress(Ticket ticket, const Deadline& deadline) override {
    thread_->progress(tickets_[ticket].thread, deadline);
    mpi_->progress(tickets_[ticket].mpi, deadline);
  }

  bool poll(Ticket ticket) override {
    const bool thread_done = thread_->poll(tickets_[ticket].thread);
    return mpi_->poll(tickets_[ticket].mpi) && thread_done;
  }

  void run(const Operation& operation) override {
    progress(submit({&operation, 1}), Deadline(kLongestLimit));
  }

  void abort(FailureKind kind, const std::string& text) noexcept override {
    thread_->abort(kind, text);
    mpi_->abort(kind, text);
  }

  std::shared_ptr<Engine> split(int color, int key, Millis limit) override {
    return mpi_->split(color, key, limit);
  }
  SharedParts allocate(int64_t bytes, Millis limit) override {
    return mpi_->allocate(bytes, limit);
  }

 private:
  struct Both {
    Ticket thread = 0;
    Ticket mpi = 0;
    std::vector<std::unique_ptr<Bytes>> memory;
  };

  std::shared_ptr<Engine> mpi_;
  std::shared_ptr<Engine> thread_;
  std::map<Ticket, Both> tickets_;
  Ticket last_ = 0;
};

std::vector<std::shared_ptr<Engine>> make_members(int size) {
  // Small chunks and messages, so that short data goes in several.
  auto mpi = make_mpi({.chunk_bytes = 16'384, .message_bytes = 4000});
  EXPECT_EQ(mpi->size(), size) << "started with another number of ranks";
  auto members = make_shm_threads(size);
  std::shared_ptr<Engine>& mine = members.at(static_cast<size_t>(mpi->rank()));
  mine = std::make_shared<BesideThreads>(mpi, mine);
  return members;
}

const bool kRegistered = more_engines().emplace("mpi", make_members).second;

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return fmt::format("{}", info.param.ranks);
}

INSTANTIATE_TEST_SUITE_P(Mpi, Conformance,
                         testing::Values(Case{"mpi", 1}, Case{"mpi", 2}, Case{"mpi", 3},
                                         Case{"mpi", 4}),
                         case_name);

}  // namespace
}  // namespace tutti::test
