/// One epoch of a dataset: which samples make up each batch, and how they are computed and laid
/// out.
///
/// Thread rule: immutable but for the Session, which locks itself.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/detail/content.h"

namespace tutti::data::detail {

/// What other files of this room may do with a Dataset.
struct Combining {
  static const ContentHandle& content(const Dataset& dataset) { return dataset.content_; }
  static const ViewHandle& view(const Dataset& dataset) { return dataset.view_; }
  static void require_no_batch(const Dataset& dataset) { dataset.require_no_batch(); }
  static Dataset dataset(ContentHandle content, ViewHandle view) {
    return {std::move(content), std::move(view)};
  }
  static Dataset with_content(Dataset dataset, ContentHandle content) {
    dataset.content_ = std::move(content);
    return dataset;
  }
  /// Batches of another size, else made as they were. UsageError for buckets, which have sizes of
  /// their own.
  static Dataset rebatched(const Dataset& dataset, int64_t global_size);
};

/// How samples become batches.
struct Batching {
  int64_t size = 1;  ///< the global batch; of buckets the largest
  bool drop_remainder = false;
  std::vector<BatchTransformHandle> transforms{};
  /// Of a row, once padding and transforms have seen it; where `masked` is set, one more than the
  /// samples have.
  std::vector<Column> columns{};

  /// By sample id, `num_sizes` each: those of the sizes that vary, column by column. Null: no
  /// padding.
  std::shared_ptr<const std::vector<int64_t>> sizes{};
  int num_sizes = 0;
  std::vector<double> padding{};   ///< by column; empty: nothing is padded
  std::optional<size_t> masked{};  ///< the column that the mask, the last one, is of

  std::vector<int64_t> boundaries{};  ///< of buckets, whose lengths are lengths[id]
  std::vector<int64_t> batches{};     ///< by bucket; empty: no buckets
  std::shared_ptr<const std::vector<int64_t>> lengths{};

  int64_t num_samples = 0;  ///< in an epoch
  int64_t num_batches = 0;

  size_t bucket_of(int64_t id) const;
};

/// Told of samples that are damaged and were replaced; throws where there are too many.
class BadSamples {
 public:
  virtual ~BadSamples() = default;
  /// where  the sample's place, the same in every epoch
  /// what   what is wrong with it, and where in the epoch
  virtual void replaced(const std::string& where, const std::string& what) = 0;
};

struct EpochState {
  std::shared_ptr<const Content> content;
  std::shared_ptr<const Batching> batching;
  Pass pass;
  Order order;                  ///< of all batches, one after another
  std::vector<int64_t> begins;  ///< of batches that differ in size, and the end; else empty
  std::unique_ptr<Session> session;

  static std::shared_ptr<const EpochState> of(const Epoch& epoch) { return epoch.state_; }

  /// [begin, end) of batch `step` in `order`.
  Share places(int64_t step) const;
  std::vector<Column> columns(int64_t step) const;

  /// Whole batches are copied out of memory: nothing is worth a thread of its own.
  bool plain() const;

  /// Computes samples [share.begin, share.end) of batch `step` into memory for them, one array a
  /// column. `bad` null: a damaged sample is an error.
  void write(int64_t step, Share share, std::span<const Array> into, Reading& reading,
             BadSamples* bad) const;

 private:
  Sample sample_at(int64_t step, int64_t row, Reading& reading, BadSamples* bad) const;
  Sample mixed(int64_t step, int64_t row, Sample own, Sample partner, bool alone) const;
  std::exception_ptr located(int64_t step, int64_t row, Ref ref, const std::string* stage) const;
};

/// The running exception as one that names the sample, and the stage it was in; `context` may be
/// empty. What a stage throws is a DataError, unless it is one of tutti's own other classes (wrong
/// use, a disk, a process that is lost) or of memory: those are not the sample's fault.
std::exception_ptr at_sample(const Content& content, int64_t id, const std::string* stage,
                             const std::string& context);

/// Of an order in place: which sample comes in which batch. Gives EpochState::begins.
std::vector<int64_t> lay_out(const Batching& batching, Order& order);

/// Fills in what an epoch has of it. UsageError where buckets would differ by the epoch.
void count(Batching& batching, const View& view);

}  // namespace tutti::data::detail
