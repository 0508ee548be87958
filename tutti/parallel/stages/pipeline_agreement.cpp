#include "tutti/parallel/stages/detail/pipeline_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <tuple>

#include "tutti/base/crc32c.h"
#include "tutti/base/error.h"
#include "tutti/mesh/check.h"
#include "tutti/parallel/stages/detail/channel.h"
#include "tutti/sync/tensors.h"

namespace tutti::parallel::detail {
namespace {

/// What a rank says of itself, a line each.
struct StageLines {
  std::string inputs, outputs;  // "float32 [3, 4], int64 [5]"
  std::vector<TieEnd> ties;
};
struct RankLines {
  std::string fault;  // of its own, or empty
  std::string schedule;
  std::vector<StageLines> stages;  // by chunk
};

std::string words_of_borders(const std::vector<Border>& borders) {
  std::vector<std::string> words;
  for (const Border& border : borders)
    words.push_back(fmt::format("{} [{}]", name_of(border.dtype), fmt::join(border.shape, ", ")));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string words_of_tied(const at::Tensor& parameter) {
  return fmt::format("{}{} [{}]", parameter.requires_grad() ? "" : "frozen ",
                     name_of(dtype_of(parameter.scalar_type())),
                     fmt::join(parameter.sizes(), ", "));
}

std::string fault_of_borders(const std::vector<Border>& borders, bool expected) {
  if (borders.empty() == expected)
    return expected ? "has no border, but a neighbour there"
                    : "has a border, but no neighbour there";
  for (const Border& border : borders)
    if (static_cast<int64_t>(border.shape.size()) >= kMostDims)
      return fmt::format("has a border of {} dimensions, expected fewer than {}",
                         border.shape.size(), kMostDims);
  return {};
}

std::string fault_of_stage(const Stage& stage, int number, int stages) {
  if (!stage.module || !stage.forward) return "has no module, or no forward";
  if (auto fault = fault_of_borders(stage.inputs, number > 0); !fault.empty())
    return "before it: " + fault;
  if (auto fault = fault_of_borders(stage.outputs, number + 1 < stages); !fault.empty())
    return "behind it: " + fault;
  for (const Tie& tie : stage.ties) {
    const bool in_order = tie.owner >= 0 && tie.owner < tie.reader && tie.reader < stages;
    if (!tie.parameter.defined() || !in_order || (tie.owner != number && tie.reader != number))
      return fmt::format(
          "has a tie of \"{}\" from stage {} to stage {}; expected one of its own, "
          "to a later stage",
          tie.name, tie.owner, tie.reader);
  }
  return {};
}

std::string fault_of_chunks(const Group& group, const mesh::Schedule& schedule,
                            const std::vector<Stage>& chunks) {
  if (group.size() != schedule.ranks())
    return fmt::format("schedule {} is for {} ranks, the group has {}", schedule.name,
                       schedule.ranks(), group.size());
  if (static_cast<int>(chunks.size()) != schedule.chunks)
    return fmt::format("got {} stages, expected the {} chunks of a rank in schedule {}",
                       chunks.size(), schedule.chunks, schedule.name);
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
    const int stage = schedule.stage_of(group.rank(), chunk);
    if (auto fault = fault_of_stage(chunks[static_cast<size_t>(chunk)], stage, schedule.stages());
        !fault.empty())
      return fmt::format("{} {}", name_of_stage(stage, group.rank()), fault);
  }
  return {};
}

std::string encoded_lines(const RankLines& lines) {
  std::string text = lines.fault + '\n' + lines.schedule + '\n';
  if (!lines.fault.empty()) return text;
  for (const StageLines& stage : lines.stages) {
    text += fmt::format("{}\n{}\n{}\n", stage.inputs, stage.outputs, stage.ties.size());
    for (const TieEnd& tie : stage.ties)
      text += fmt::format("{} {}\n{}\n{}\n", tie.owner, tie.reader, tie.name, tie.tensor);
  }
  return text;
}

RankLines decoded_lines(const std::string& text, int chunks) {
  std::istringstream in(text);
  const auto line = [&] {
    std::string words;
    std::getline(in, words);
    return words;
  };
  RankLines lines{.fault = line(), .schedule = line()};
  if (!lines.fault.empty()) return lines;
  for (int chunk = 0; chunk < chunks && in; ++chunk) {
    StageLines stage{.inputs = line(), .outputs = line()};
    for (int ties = std::atoi(line().c_str()); ties > 0; --ties) {
      TieEnd tie;
      std::istringstream(line()) >> tie.owner >> tie.reader;
      tie.name = line();
      tie.tensor = line();
      stage.ties.push_back(tie);
    }
    lines.stages.push_back(std::move(stage));
  }
  return lines;
}

std::vector<std::string> gathered(Group& group, const std::string& mine, Millis limit) {
  if (group.size() == 1) return {mine};
  std::vector<int64_t> lengths(static_cast<size_t>(group.size()));
  std::vector<int64_t> length{static_cast<int64_t>(mine.size())};
  group.all_gather(span_of(std::span(length)), span_of(std::span(lengths)), limit).wait(limit);
  std::vector<uint8_t> bytes(mine.begin(), mine.end());
  const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::vector<uint8_t> all(static_cast<size_t>(sum));
  group.all_gather(span_of(std::span(bytes)), span_of(std::span(all)), lengths, limit).wait(limit);
  std::vector<std::string> texts;
  auto at = all.begin();
  for (const int64_t count : lengths) {
    texts.emplace_back(at, at + count);
    at += count;
  }
  return texts;
}

void require_one_schedule(const std::vector<RankLines>& ranks) {
  for (size_t r = 0; r < ranks.size(); ++r)
    if (!ranks[r].fault.empty())
      throw Mismatch(fmt::format("pipeline: rank {} of {} has a fault of its own: {}", r,
                                 ranks.size(), ranks[r].fault));
  for (size_t r = 1; r < ranks.size(); ++r)
    if (ranks[r].schedule != ranks[0].schedule)
      throw Mismatch(
          fmt::format("pipeline: rank {} of {} has {}, rank 0 has {}; expected the same "
                      "schedule on all ranks",
                      r, ranks.size(), ranks[r].schedule, ranks[0].schedule));
}

std::vector<TieEnd> ties_of_all(const mesh::Schedule& schedule,
                                const std::vector<StageLines>& stages) {
  const auto named = [&](int stage) { return name_of_stage(stage, schedule.rank_of(stage)); };
  std::vector<TieEnd> all;
  for (int stage = 0; stage < schedule.stages(); ++stage)
    for (const TieEnd& tie : stages[static_cast<size_t>(stage)].ties) {
      const int other = tie.owner == stage ? tie.reader : tie.owner;
      if (std::ranges::count(stages[static_cast<size_t>(other)].ties, tie) != 1)
        throw Mismatch(
            fmt::format("pipeline: {} has a tie of \"{}\", {}, with {}, which has not "
                        "exactly one like it",
                        named(stage), tie.name, tie.tensor, named(other)));
      if (tie.owner == stage) all.push_back(tie);
    }
  std::ranges::sort(all, [](const TieEnd& a, const TieEnd& b) {
    return std::tuple(a.owner, a.name, b.reader) < std::tuple(b.owner, b.name, a.reader);
  });
  return all;
}

}  // namespace

std::vector<TieEnd> agree_on_pipeline(Group group, const mesh::Schedule& schedule,
                                      const std::vector<Stage>& chunks, Millis limit) {
  const auto fault_of_schedule = mesh::fault_of(schedule);
  RankLines own{.fault = fault_of_schedule
                             ? fmt::format("schedule {}: {}", schedule.name, *fault_of_schedule)
                             : fault_of_chunks(group, schedule, chunks)};
  own.schedule =
      fmt::format("schedule {} of {} ranks, {} chunks, {} microbatches (checksum {:08x})",
                  schedule.name, schedule.ranks(), schedule.chunks, schedule.microbatches,
                  fault_of_schedule ? 0 : crc32c(to_csv(schedule)));
  for (const Stage& stage : chunks) {
    StageLines lines{words_of_borders(stage.inputs), words_of_borders(stage.outputs)};
    if (own.fault.empty())
      for (const Tie& tie : stage.ties)
        lines.ties.push_back({tie.owner, tie.reader, tie.name, words_of_tied(tie.parameter)});
    own.stages.push_back(std::move(lines));
  }
  std::vector<std::string> texts;
  with_words(
      [&] { return fmt::format("pipeline, rank {} compares with the others", group.rank()); },
      [&] { texts = gathered(group, encoded_lines(own), limit); });
  if (fault_of_schedule) throw DataError(own.fault);
  if (!own.fault.empty()) throw UsageError("pipeline: " + own.fault);

  std::vector<RankLines> ranks;
  for (const std::string& text : texts) ranks.push_back(decoded_lines(text, schedule.chunks));
  require_one_schedule(ranks);
  std::vector<StageLines> stages;
  for (int stage = 0; stage < schedule.stages(); ++stage)
    stages.push_back(ranks[static_cast<size_t>(schedule.rank_of(stage))]
                         .stages[static_cast<size_t>(schedule.chunk_of(stage))]);
  for (int stage = 1; stage < schedule.stages(); ++stage) {
    const std::string& given = stages[static_cast<size_t>(stage) - 1].outputs;
    const std::string& taken = stages[static_cast<size_t>(stage)].inputs;
    if (given != taken)
      throw Mismatch(fmt::format("pipeline: {} gives {}, {} takes {}",
                                 name_of_stage(stage - 1, schedule.rank_of(stage - 1)), given,
                                 name_of_stage(stage, schedule.rank_of(stage)), taken));
  }
  return ties_of_all(schedule, stages);
}

}  // namespace tutti::parallel::detail
