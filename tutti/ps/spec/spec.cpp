#include "tutti/ps/spec/spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/ps/spec/detail/json_fields.h"

namespace tutti::ps {
namespace {

using detail::whole_number;

constexpr int64_t kAlign = 64;
constexpr int64_t kGrid = 1024;
constexpr int64_t kMostElements = int64_t{1} << 48;  // of a variable: no sum of bytes overflows

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// A shard in elements, not rows.
Segment whole_of(const Shard& shard, const Variable& variable) {
  const int64_t rows = variable.shape.empty() ? 1 : variable.shape.front();
  const int64_t width = rows == 0 ? 0 : variable.num_elements() / rows;
  return {shard.variable, shard.rows.begin * width, shard.rows.end * width, 0};
}

// Puts segments into pieces of one partition and dtype.
class Packer {
 public:
  Packer(std::vector<Piece>& pieces, int64_t piece_bytes)
      : pieces_(pieces), piece_bytes_(piece_bytes) {}

  void add(int partition, DType dtype, Segment segment) {
    const int64_t most = std::max(kGrid, piece_bytes_ / size_of(dtype) / kGrid * kGrid);
    while (segment.count() > 0) {
      const int64_t count = std::min(most, segment.count());
      put(partition, dtype, {segment.variable, segment.begin, segment.begin + count, 0});
      segment.begin += count;
    }
  }

 private:
  void put(int partition, DType dtype, Segment segment) {
    const int64_t bytes = segment.count() * size_of(dtype);
    auto [open, fresh] = open_.try_emplace({partition, dtype}, pieces_.size());
    if (!fresh && pieces_[open->second].num_bytes + bytes > piece_bytes_) {
      open->second = pieces_.size();
      fresh = true;
    }
    if (fresh) pieces_.push_back({.partition = partition, .dtype = dtype});
    Piece& piece = pieces_[open->second];
    segment.offset_bytes = piece.num_bytes;
    piece.segments.push_back(segment);
    piece.num_bytes += aligned(bytes);
  }

  std::vector<Piece>& pieces_;
  const int64_t piece_bytes_;
  std::map<std::pair<int, DType>, size_t> open_;  // piece that still takes some
};

Json to_json(const optim::Rule& rule) {
  Json fields = {{"name", rule.name()}};
  auto options = rule.options();
  std::visit(
      [&](auto& o) {
        visit_fields(o, [&]<class Field>(const char* name, const Field& value) {
          if (value != Field{} || !optim::is_later_field(name)) fields[name] = value;
        });
      },
      options);
  return fields;
}

optim::Rule rule_from(const Json& fields) {
  auto options = optim::rule_by_name(fields.at("name").get<std::string>()).options();
  std::visit(
      [&](auto& o) {
        visit_fields(o, [&](const char* name, auto& value) {
          if (fields.contains(name) || !optim::is_later_field(name)) fields.at(name).get_to(value);
        });
      },
      options);
  return optim::Rule(options);
}

Json to_json(const SparseTableSpec& table) {
  Json rows = Json::array({"zeros"});
  if (const auto* uniform = std::get_if<UniformRows>(&table.initializer))
    rows = {"uniform", uniform->low, uniform->high};
  if (const auto* normal = std::get_if<NormalRows>(&table.initializer))
    rows = {"normal", normal->mean, normal->std};
  return {table.name,      table.width,      static_cast<int>(table.dtype), rows, table.seed,
          table.most_rows, table.idle_pushes};
}

Json to_json(const Spec& spec) {
  Json text;
  text["optimizer"] = to_json(spec.rule);
  text["staleness"] = spec.staleness.text();
  text["workers"] = spec.num_workers;
  text["reduction shape"] = spec.shape.to_string();
  text["drop_slowest"] = spec.drop_slowest;
  text["on_lost_worker"] = name_of(spec.on_lost_worker);
  text["scale_by_staleness"] = spec.scale_by_staleness;
  text["delay_compensation"] = spec.delay_compensation;
  text["stop_if_not_finite"] = spec.stop_if_not_finite;
  text["host_sums"] = spec.host_sums;
  text["goes_on_from"] = spec.goes_on_from;
  text["partitions"] = spec.num_partitions;
  for (const Variable& variable : spec.variables)
    text["variables"].push_back({variable.name, static_cast<int>(variable.dtype), variable.shape});
  for (const SparseTableSpec& table : spec.tables) text["tables"].push_back(to_json(table));
  for (const Piece& piece : spec.pieces) {
    Json segments = Json::array();
    for (const Segment& segment : piece.segments)
      segments.push_back({segment.variable, segment.begin, segment.end, segment.offset_bytes});
    text["pieces"].push_back(
        {piece.partition, static_cast<int>(piece.dtype), piece.num_bytes, segments});
  }
  return text;
}

DType dtype_from(const Json& number) {
  const int value = whole_number<int>(number, "dtype");
  if (value != static_cast<int>(DType::float32) && value != static_cast<int>(DType::float64))
    throw Error(fmt::format("dtype: got number {}, expected {} (float32) or {} (float64)", value,
                            static_cast<int>(DType::float32), static_cast<int>(DType::float64)));
  return static_cast<DType>(value);
}

SparseTableSpec table_from(const Json& list) {
  SparseTableSpec table{.name = list.at(0),
                        .width = whole_number<int64_t>(list.at(1), "tables: width"),
                        .dtype = dtype_from(list.at(2))};
  const Json& rows = list.at(3);
  const std::string how = rows.at(0);
  if (how == "zeros")
    table.initializer = ZeroRows{};
  else if (how == "uniform")
    table.initializer = UniformRows{rows.at(1), rows.at(2)};
  else if (how == "normal")
    table.initializer = NormalRows{rows.at(1), rows.at(2)};
  else
    throw Error(fmt::format("tables: rows of \"{}\": got \"{}\", expected zeros, uniform or normal",
                            table.name, how));
  table.seed = whole_number<uint64_t>(list.at(4), "tables: seed");
  table.most_rows = whole_number<int64_t>(list.at(5), "tables: most_rows");
  table.idle_pushes = whole_number<int64_t>(list.at(6), "tables: idle_pushes");
  return table;
}

Variable variable_from(const Json& list) {
  Variable variable{.name = list.at(0), .shape = {}, .dtype = dtype_from(list.at(1))};
  for (const Json& length : list.at(2))
    variable.shape.push_back(whole_number<int64_t>(length, "variables: shape"));
  return variable;
}

Piece piece_from(const Json& list) {
  Piece piece{.partition = whole_number<int>(list.at(0), "pieces: partition"),
              .dtype = dtype_from(list.at(1)),
              .num_bytes = whole_number<int64_t>(list.at(2), "pieces: bytes")};
  for (const Json& segment : list.at(3))
    piece.segments.push_back({whole_number<int>(segment.at(0), "pieces: variable"),
                              whole_number<int64_t>(segment.at(1), "pieces: begin"),
                              whole_number<int64_t>(segment.at(2), "pieces: end"),
                              whole_number<int64_t>(segment.at(3), "pieces: offset")});
  return piece;
}

template <class T>
T member(const Json& text, const char* name) {
  try {
    return text.at(name).get<T>();
  } catch (const JsonError& error) {
    throw Error(fmt::format("{}: {}", name, error.what()));
  }
}

Spec read(const Json& text) {
  Spec spec{.rule = rule_from(text.at("optimizer"))};
  spec.staleness = Staleness::parse(member<std::string>(text, "staleness"), "staleness");
  spec.num_workers = whole_number<int>(text.at("workers"), "workers");
  spec.shape = ReductionShape::parse(member<std::string>(text, "reduction shape"));
  spec.drop_slowest = whole_number<int>(text.at("drop_slowest"), "drop_slowest");
  spec.on_lost_worker =
      on_lost_worker_from(member<std::string>(text, "on_lost_worker"), "on_lost_worker");
  spec.scale_by_staleness = member<bool>(text, "scale_by_staleness");
  spec.delay_compensation = member<double>(text, "delay_compensation");
  spec.stop_if_not_finite = member<bool>(text, "stop_if_not_finite");
  spec.host_sums = member<bool>(text, "host_sums");
  spec.goes_on_from = member<std::string>(text, "goes_on_from");
  spec.num_partitions = whole_number<int>(text.at("partitions"), "partitions");
  for (const Json& variable : text.value("variables", Json::array()))
    spec.variables.push_back(variable_from(variable));
  for (const Json& table : text.value("tables", Json::array()))
    spec.tables.push_back(table_from(table));
  for (const Json& piece : text.value("pieces", Json::array()))
    spec.pieces.push_back(piece_from(piece));
  return spec;
}

template <class Got>
void require(bool good, std::string_view field, const Got& got, std::string_view expected) {
  if (!good) throw UsageError(fmt::format("{}: got {}, expected {}", field, got, expected));
}

void require_in_range(std::string_view field, double value, double low, double high) {
  require(value >= low && value <= high, field, value, fmt::format("{} to {}", low, high));
}

// What an option is beside others.
void check_steps(const Spec& spec) {
  const bool in_step = spec.staleness.synchronous();
  const bool ends = spec.on_lost_worker == OnLostWorker::end;
  const std::string staleness = "with staleness " + spec.staleness.text();
  require(spec.drop_slowest == 0 || in_step, "drop_slowest", spec.drop_slowest, "0 " + staleness);
  require(ends || in_step, "on_lost_worker", name_of(spec.on_lost_worker), "end " + staleness);
  require(ends || spec.drop_slowest == 0, "on_lost_worker", name_of(spec.on_lost_worker),
          fmt::format("end with drop_slowest {}", spec.drop_slowest));
  require(!spec.scale_by_staleness || !in_step, "scale_by_staleness", true, "false " + staleness);
  require(spec.delay_compensation == 0 || !in_step, "delay_compensation", spec.delay_compensation,
          "0 " + staleness);
}

void check_host_sums(const Spec& spec) {
  if (!spec.host_sums) return;
  const bool all_push = spec.staleness.synchronous() && spec.drop_slowest == 0 &&
                        spec.stop_if_not_finite && spec.on_lost_worker == OnLostWorker::end;
  require(all_push, "host_sums", true,
          "false: workers of one host push one sum, so none of them can be stale, dropped, lost or "
          "left out by itself");
  const int local = spec.shape.replicas() / spec.num_workers;
  const bool whole = std::ranges::all_of(spec.shape.replicas_per_host(), [&](int replicas) {
    return local > 0 && replicas % local == 0;
  });
  require(whole && spec.shape.replicas() == local * spec.num_workers, "reduction shape",
          spec.shape.to_string(),
          fmt::format("hosts that {} workers fill (host_sums)", spec.num_workers));
}

void check_variable(const Variable& variable) {
  const auto field = [&](const char* name) {
    return fmt::format("variables: {} of \"{}\"", name, variable.name);
  };
  require(variable.dtype == DType::float32 || variable.dtype == DType::float64, field("dtype"),
          name_of(variable.dtype), "float32 or float64");
  int64_t elements = 1;
  for (const int64_t length : variable.shape) {
    require(length >= 0 && (length == 0 || elements <= kMostElements / length), field("shape"),
            fmt::format("[{}]", fmt::join(variable.shape, ", ")),
            fmt::format("lengths of 0 or more, {} elements at most", kMostElements));
    elements *= length;
  }
}

void check_tables(const Spec& spec) {
  std::set<std::string> names;
  for (const SparseTableSpec& table : spec.tables) {
    table.validate();
    require(names.insert(table.name).second, "tables: name",
            fmt::format("\"{}\" twice", table.name), "each once");
  }
  if (spec.tables.empty()) return;
  const std::string with = fmt::format("with embedding table \"{}\"", spec.tables.front().name);
  require(spec.delay_compensation == 0, "delay_compensation", spec.delay_compensation, "0 " + with);
  require(spec.on_lost_worker != OnLostWorker::wait, "on_lost_worker", "wait",
          "end or continue " + with);
}

// Segments lie one behind the other, each on a line of 64 bytes, as pieces_of() packs them.
void check_piece(const Spec& spec, const Piece& piece) {
  require_in_range("pieces: partition", piece.partition, 0, spec.num_partitions - 1);
  int64_t end = 0;
  for (const Segment& segment : piece.segments) {
    require_in_range("pieces: variable", segment.variable, 0,
                     static_cast<double>(spec.variables.size()) - 1);
    const Variable& variable = spec.variables[segment.variable];
    const int64_t most = variable.num_elements();
    require(variable.dtype == piece.dtype, "pieces: dtype", name_of(piece.dtype),
            fmt::format("{}, as variable \"{}\"", name_of(variable.dtype), variable.name));
    require(segment.begin >= 0 && segment.begin < segment.end && segment.end <= most,
            "pieces: elements", fmt::format("[{}, {})", segment.begin, segment.end),
            fmt::format("some of the {} of variable \"{}\"", most, variable.name));
    require(segment.offset_bytes == end, "pieces: offset", segment.offset_bytes,
            fmt::format("{}", end));
    end += aligned(segment.count() * size_of(piece.dtype));
  }
  require(piece.num_bytes == end, "pieces: bytes", piece.num_bytes,
          fmt::format("{}, as its segments have", end));
}

std::string words_of(const Variable& variable) {
  return fmt::format("\"{}\" {} [{}]", variable.name, name_of(variable.dtype),
                     fmt::join(variable.shape, ", "));
}

std::string variable_difference(const Spec& mine, const Spec& other) {
  const size_t count = std::min(mine.variables.size(), other.variables.size());
  for (size_t i = 0; i < count; ++i)
    if (!(mine.variables[i] == other.variables[i]))
      return fmt::format("variable {} is {}, not {}", i, words_of(mine.variables[i]),
                         words_of(other.variables[i]));
  return fmt::format("it has {} variables, not {}", mine.variables.size(), other.variables.size());
}

// Of two rules, as JSON; "": none.
std::string differing_option(const Json& mine, const Json& other) {
  std::vector<std::string> fields = {"name"};  // before what rules of other names do not have
  for (const auto& [field, value] : mine.items()) fields.push_back(field);
  for (const std::string& field : fields)
    if (other.value(field, Json()) != mine.at(field)) return field;
  return "";
}

// Of things with a name; `words` says what one is.
template <class Thing, class Words>
std::string difference_by_name(const char* what, const std::vector<Thing>& saved,
                               const std::vector<Thing>& wanted, Words&& words) {
  const auto find = [](const std::vector<Thing>& all, const std::string& name) {
    return std::ranges::find(all, name, &Thing::name);
  };
  for (const Thing& thing : wanted) {
    const auto got = find(saved, thing.name);
    if (got == saved.end() || !(*got == thing))
      return fmt::format("{} \"{}\": got {}, expected {}", what, thing.name,
                         got == saved.end() ? "none" : words(*got), words(thing));
  }
  for (const Thing& thing : saved)
    if (find(wanted, thing.name) == wanted.end())
      return fmt::format("{} \"{}\": got {}, expected none", what, thing.name, words(thing));
  return "";
}

std::string table_difference(const Spec& mine, const Spec& other) {
  const size_t count = std::min(mine.tables.size(), other.tables.size());
  for (size_t i = 0; i < count; ++i)
    if (!(mine.tables[i] == other.tables[i]))
      return fmt::format("table {} is {}, not {}", i, mine.tables[i].words(),
                         other.tables[i].words());
  return fmt::format("it has {} embedding tables, not {}", mine.tables.size(), other.tables.size());
}

}  // namespace

std::vector<Piece> pieces_of(const std::vector<Variable>& variables, const Placement& placement,
                             int64_t piece_bytes) {
  if (piece_bytes < 1) throw UsageError(fmt::format("pieces of {} bytes", piece_bytes));
  std::vector<Piece> pieces;
  Packer packer(pieces, piece_bytes);
  for (const Shard& shard : placement.shards) {
    const Variable& variable = variables.at(shard.variable);
    packer.add(shard.server, variable.dtype, whole_of(shard, variable));
  }
  return pieces;
}

void check(const Spec& spec) {
  constexpr int kMost = 1 << 20;
  require_in_range("workers", spec.num_workers, 1, kMost);
  require_in_range("partitions", spec.num_partitions, 1, kMost);
  require_in_range("drop_slowest", spec.drop_slowest, 0, spec.num_workers - 1);
  require_in_range("delay_compensation", spec.delay_compensation, 0, kMostDelayCompensation);
  check_steps(spec);
  check_host_sums(spec);
  for (const Variable& variable : spec.variables) check_variable(variable);
  check_tables(spec);
  for (const Piece& piece : spec.pieces) check_piece(spec, piece);
}

std::string to_text(const Spec& spec) { return dump_json(to_json(spec)); }

Spec spec_from(std::string_view text) {
  return detail::read_json(text, "a specification of a job", [](const Json& fields) {
    Spec spec = read(fields);
    check(spec);
    return spec;
  });
}

std::string difference(const Spec& mine, const Spec& other) {
  if (mine.variables != other.variables) return variable_difference(mine, other);
  if (mine.tables != other.tables) return table_difference(mine, other);
  Json a = to_json(mine);
  Json b = to_json(other);
  if (const std::string field = differing_option(a["optimizer"], b["optimizer"]); !field.empty())
    return fmt::format("the optimizer has {} {}, not {}", field, dump_json(a["optimizer"][field]),
                       dump_json(b["optimizer"].value(field, Json())));
  for (const char* later : {"optimizer", "variables", "pieces"}) {
    a.erase(later);
    b.erase(later);
  }
  for (const auto& [field, value] : a.items())
    if (b[field] != value)
      return fmt::format("{} is {}, not {}", field, dump_json(value), dump_json(b[field]));
  if (mine.pieces == other.pieces) return "";
  return fmt::format("its variables are placed in another way, in {} pieces, not {} like these",
                     mine.pieces.size(), other.pieces.size());
}

std::string model_difference(const Spec& saved, const Spec& wanted) {
  std::string why =
      difference_by_name("variable", saved.variables, wanted.variables, [](const Variable& v) {
        return fmt::format("{} [{}]", name_of(v.dtype), fmt::join(v.shape, ", "));
      });
  if (why.empty())
    why = difference_by_name("embedding table", saved.tables, wanted.tables,
                             [](const SparseTableSpec& table) { return table.words(); });
  if (!why.empty()) return why;
  Json got = to_json(saved.rule);
  Json expected = to_json(wanted.rule);
  got.erase("learning_rate");
  expected.erase("learning_rate");
  const std::string field = differing_option(expected, got);
  if (field.empty()) return "";
  return fmt::format("optimizer: got {} {}, expected {}", field,
                     dump_json(got.value(field, Json())), dump_json(expected.at(field)));
}

}  // namespace tutti::ps
