#include "tutti/parallel/model/model_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/suggest.h"
#include "tutti/data/dataset.h"
#include "tutti/mesh/check.h"

namespace tutti::parallel {

mesh::Schedule ScheduleChoice::schedule(int ranks, int microbatches) const {
  if (csv.empty())
    return mesh::schedule_by_name(name,
                                  {.ranks = ranks, .microbatches = microbatches, .chunks = chunks});
  auto read = mesh::from_csv(read_file(csv), csv.string());
  mesh::check(read);
  if (read.ranks() != ranks || read.microbatches != microbatches || read.chunks != chunks)
    throw UsageError(fmt::format(
        "schedule {}: is of {} ranks with {} stages each and {} microbatches; the training has {} "
        "with {}, and {}",
        csv.string(), read.ranks(), read.chunks, read.microbatches, ranks, chunks, microbatches));
  return read;
}

ScheduleChoice schedule_choice(const std::string& name, int chunks) {
  if (name.ends_with(".csv")) {
    const mesh::Schedule read = mesh::from_csv(read_file(name), name);
    mesh::check(read);
    return from_csv(name, read.chunks);
  }
  const auto& known = mesh::schedule_names();
  if (std::ranges::find(known, name) == known.end())
    throw UsageError(unknown_message("schedule", name, known));
  const bool pairs = name == "zb-v" || name == "dualpipe-v";
  const int usual = name == "interleaved" || pairs ? 2 : 1;
  if (chunks != 0 && chunks != usual && name != "interleaved")
    throw UsageError(fmt::format("schedule {}: has {} stages a rank, got {}", name, usual, chunks));
  return {name, chunks == 0 ? usual : chunks};
}

Border sample_of(const data::Dataset& dataset) {
  const data::Column& input = dataset.columns()[0];
  if (!input.fixed())
    throw UsageError(fmt::format(
        "sample_of: column {}: its rows differ in shape, expected one shape\n  say what a sample "
        "is by hand: parallel::Border{{{{size, ...}}}}",
        input.to_string()));
  return {.shape = input.shape, .dtype = input.dtype};
}

}  // namespace tutti::parallel
