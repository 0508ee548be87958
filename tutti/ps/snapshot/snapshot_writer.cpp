#include "tutti/ps/snapshot/snapshot_writer.h"

#include <filesystem>
#include <map>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/sha256.h"
#include "tutti/data/safetensors.h"
#include "tutti/ps/snapshot/detail/snapshot_format.h"
#include "tutti/store/sealed_json.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

constexpr int64_t kRowsBytes = int64_t{64} << 20;  // of a file of rows, about

Json words_of(const optim::StepScalars& s) {
  return {s.learning_rate, s.beta1_power, s.beta2_power, s.decay_power, s.count};
}

// Writes the files of one partition, and keeps what the manifest says of them.
class Files {
 public:
  explicit Files(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void write(const std::string& name, const std::vector<data::NamedArray>& arrays,
             const Json& metadata) {
    Sha256 digest;
    const int64_t bytes = data::write_safetensors(folder_ / name, arrays,
                                                  {{detail::kMetadata, metadata.dump()}}, &digest);
    facts_.push_back(store::json_of<Json>({name, bytes, digest.hex()}));
  }

  const Json& facts() const { return facts_; }

 private:
  const std::filesystem::path folder_;
  Json facts_ = Json::array();
};

// Views of a piece's memory, by segment; `segments` gets what belongs to them.
void add_piece(const Spec& spec, int number, const DensePiece& piece,
               std::vector<data::NamedArray>& arrays, Json& segments) {
  const std::vector<Bytes> memory = piece.memory();
  const Piece& layout = spec.pieces[number];
  for (size_t i = 0; i < layout.segments.size(); ++i) {
    const Segment& segment = layout.segments[i];
    for (size_t block = 0; block < memory.size(); ++block) {
      auto* const data = const_cast<std::byte*>(memory[block].span.data()) + segment.offset_bytes;
      const auto state =
          block == 0 ? std::string_view() : spec.rule.state_name(static_cast<int>(block) - 1);
      arrays.push_back({detail::name_of_range(spec.variables[segment.variable].name, segment.begin,
                                              segment.end, state),
                        Array::view(data, layout.dtype, {segment.count()}, memory[block].owner)});
    }
    segments.push_back({{"variable", segment.variable},
                        {"begin", segment.begin},
                        {"end", segment.end},
                        {"version", piece.version()},
                        {"scalars", words_of(piece.scalars()[i])}});
  }
}

template <class T>
Array array_of(const std::vector<T>& values) {
  Array array = Array::zeros(dtype_of<T>(), {std::ssize(values)});
  std::ranges::copy(values, array.as<T>().begin());
  return array;
}

// The vector must outlive the view.
Array view_of(std::vector<std::byte>& bytes, const SparseTableSpec& spec, int64_t rows) {
  return Array::view(bytes.data(), spec.dtype, {rows, spec.width}, nullptr);
}

std::vector<data::NamedArray> arrays_of(SparseRows& rows, const SparseTableSpec& spec,
                                        const optim::Rule& rule) {
  const auto count = std::ssize(rows.keys);
  std::vector<data::NamedArray> arrays;
  arrays.push_back({"keys", array_of(rows.keys)});
  arrays.push_back({"rows", view_of(rows.rows, spec, count)});
  arrays.push_back({"ages", array_of(rows.ages)});
  for (size_t k = 0; k < rows.states.size(); ++k)
    arrays.push_back({fmt::format("rows.{}", rule.state_name(static_cast<int>(k))),
                      view_of(rows.states[k], spec, count)});
  std::map<std::string, std::vector<double>> scalars;
  std::vector<int64_t> counts;
  for (const optim::StepScalars& s : rows.scalars) {
    scalars["learning_rates"].push_back(s.learning_rate);
    scalars["beta1_powers"].push_back(s.beta1_power);
    scalars["beta2_powers"].push_back(s.beta2_power);
    scalars["decay_powers"].push_back(s.decay_power);
    counts.push_back(s.count);
  }
  for (const auto& [name, values] : scalars) arrays.push_back({name, array_of(values)});
  arrays.push_back({"counts", array_of(counts)});
  return arrays;
}

void write_rows(PartitionState& state, int partition, Files& files) {
  const Spec& spec = state.spec();
  for (int table = 0; table < std::ssize(spec.tables); ++table) {
    const SparseTableSpec& about = spec.tables[table];
    const int64_t row = about.width * size_of(about.dtype) * (1 + spec.rule.num_states()) + 64;
    SparseReader reader(state.own_tables().snapshot(table));
    for (int64_t chunk = 0;; ++chunk) {
      SparseRows rows = reader.next(std::max<int64_t>(1, kRowsBytes / row));
      if (rows.keys.empty()) break;
      files.write(detail::name_of_rows(partition, table, chunk), arrays_of(rows, about, spec.rule),
                  {{"partition", partition}, {"table", about.name}});
    }
  }
}

}  // namespace

std::string write_partition(PartitionCut& cut, int partition) {
  PartitionState& state = cut.state();
  if (const std::string why = cut.objection(); !why.empty()) throw Error(why);
  const Spec& spec = state.spec();
  Files files(cut.folder());
  std::vector<data::NamedArray> arrays;
  Json segments = Json::array();
  for (const auto& [number, piece] : state.pieces())
    add_piece(spec, number, piece, arrays, segments);
  Json facts = parse_json(to_text(cut.part(partition)));
  facts["counts"] = to_text(state.counts());
  if (partition == 0) facts["cursor"] = state.reopened_cursor().to_text();
  Json metadata = facts;
  metadata["spec"] = to_text(spec);
  metadata["segments"] = std::move(segments);
  files.write(detail::name_of_partition(partition), arrays, metadata);
  write_rows(state, partition, files);
  facts["files"] = files.facts();
  if (partition == 0) facts["spec"] = parse_json(to_text(spec));
  return facts.dump();
}

SnapshotWriter::SnapshotWriter(std::function<void()> wake, Millis farewell)
    : farewell_(farewell), disk_("snapshots", std::move(wake)) {}

// A thread that a disk holds reads its cut when it goes on: that one stays as long as the process.
SnapshotWriter::~SnapshotWriter() {
  disk_.forget_waiting();
  if (disk_.wait(Deadline(farewell_))) return;
  using Cuts = std::vector<std::shared_ptr<PartitionCut>>;
  static Cuts* const abandoned = std::make_unique<Cuts>().release();
  for (auto& cut : cuts_) abandoned->push_back(std::move(cut));
}

void SnapshotWriter::add(int partition, std::shared_ptr<PartitionCut> cut) {
  if (cut->number() < newest_) return;
  if (cut->number() > newest_) disk_.forget_waiting();
  newest_ = cut->number();
  let_go();
  cuts_.push_back(cut);
  disk_.add_with_then([this, partition, cut = std::move(cut)]() mutable -> store::DiskThread::Then {
    Message written{.kind = Kind::written, .partition = partition, .sequence = cut->number()};
    try {
      written.text = write_partition(*cut, partition);
    } catch (const std::exception& error) {
      written.flags = Message::not_written;
      written.text = error.what();
    }
    cut.reset();
    return [this, written = std::move(written)] { written_.push_back(written); };
  });
}

// Of all cuts that nobody else has: those that are written, or given up.
void SnapshotWriter::let_go() {
  std::erase_if(cuts_, [](const auto& cut) { return cut.use_count() == 1; });
}

std::vector<Message> SnapshotWriter::take_written() {
  disk_.process();
  let_go();
  return std::exchange(written_, {});
}

}  // namespace tutti::ps
