// Specifications: cut into pieces, as text and back, compared in words, and checked.
#include <gmock/gmock.h>

#include <functional>

#include "tutti/base/error.h"

#include "tests/support/message_of.h"
#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tutti::test::message_of;

Piece piece_of(int partition, DType dtype, std::vector<Segment> segments, int64_t bytes) {
  return {partition, dtype, std::move(segments), bytes};
}

TEST(PiecesOf, CutsLargeShardsOnTheGridAndPacksSmallOnes) {
  const std::vector<Variable> variables = {
      {"large", {5000}, DType::float32}, {"a", {3}, DType::float32}, {"b", {20}, DType::float32}};
  // 10,000 bytes are 2,500 floats: two grids of 1,024.
  const auto pieces = pieces_of(variables, place(variables, {}), 10'000);
  EXPECT_EQ(pieces, (std::vector<Piece>{
                        piece_of(0, DType::float32, {{0, 0, 2048, 0}}, 8192),
                        piece_of(0, DType::float32, {{0, 2048, 4096, 0}}, 8192),
                        piece_of(0, DType::float32,
                                 {{0, 4096, 5000, 0}, {1, 0, 3, 3648}, {2, 0, 20, 3712}}, 3840),
                    }));
}

TEST(PiecesOf, NeverCutsBelowTheGrid) {
  const std::vector<Variable> variables = {{"a", {1025}, DType::float64}};
  const auto pieces = pieces_of(variables, place(variables, {}), 1);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].segments, (std::vector<Segment>{{0, 0, 1024, 0}}));
  EXPECT_EQ(pieces[1].segments, (std::vector<Segment>{{0, 1024, 1025, 0}}));
  EXPECT_EQ(pieces[1].num_bytes, 64);
  EXPECT_THAT(message_of<UsageError>([&] { pieces_of(variables, place(variables, {}), 0); }),
              HasSubstr("pieces of 0 bytes"));
}

TEST(PiecesOf, MixesNeitherPartitionsNorTypesAndSkipsWhatIsEmpty) {
  const std::vector<Variable> variables = {{"a", {8}, DType::float32},
                                           {"b", {8}, DType::float64},
                                           {"empty", {0, 7}, DType::float32},
                                           {"c", {8, 2}, DType::float32},
                                           {"scalar", {}, DType::float32}};
  PlacementOptions options{.num_servers = 2, .partitioner = Partitioner::fixed(2)};
  options.rules = {{"a", 1}, {"b", 1}, {"scalar", 1}};
  const auto pieces = pieces_of(variables, place(variables, options), 1 << 20);
  std::map<std::pair<int, DType>, int64_t> elements;
  for (const Piece& piece : pieces)
    for (const Segment& segment : piece.segments) {
      EXPECT_EQ(variables[segment.variable].dtype, piece.dtype);
      EXPECT_NE(segment.variable, 2);
      elements[{piece.partition, piece.dtype}] += segment.count();
    }
  EXPECT_EQ((elements[{1, DType::float64}]), 8);
  EXPECT_EQ((elements[{0, DType::float32}] + elements[{1, DType::float32}]), 8 + 16 + 1);
}

Spec full_spec(const optim::Rule& rule) {
  Spec spec{.rule = rule};
  spec.variables = {{"a", {3, 5}, DType::float32}, {"b\n\"", {}, DType::float64}};
  PlacementOptions options{.num_servers = 2};
  spec.pieces = pieces_of(spec.variables, place(spec.variables, options));
  spec.num_partitions = 2;
  spec.staleness = Staleness(3);
  spec.num_workers = 4;
  spec.shape = ReductionShape::parse("3+1");
  spec.scale_by_staleness = true;
  spec.delay_compensation = 0.1;
  spec.stop_if_not_finite = false;
  return spec;
}

TEST(Spec, ComesBackFromItsTextWithEveryRule) {
  for (const optim::Rule& rule :
       {optim::sgd({.learning_rate = 0.1, .momentum = 0.3, .nesterov = true, .weight_decay = 1e-7}),
        optim::adam({.learning_rate = 1.0 / 3, .beta1 = 0.7, .beta2 = 0.9, .epsilon = 1e-9}),
        optim::adamw({.weight_decay = 0.3}), optim::adam({.amsgrad = true}),
        optim::adagrad({.initial_accumulator = 0.7}),
        optim::ftrl({.beta = 2, .l1 = 0.1, .l2 = 1e-17, .initial_accumulator = 3})}) {
    const Spec spec = full_spec(rule);
    const Spec back = spec_from(to_text(spec));
    EXPECT_EQ(to_text(back), to_text(spec));
    EXPECT_EQ(difference(back, spec), "");
    EXPECT_EQ(back.variables, spec.variables);
    EXPECT_EQ(back.pieces, spec.pieces);
    EXPECT_EQ(back.rule.options().index(), rule.options().index());
    EXPECT_EQ(back.rule.learning_rate(), rule.learning_rate());
    EXPECT_TRUE(back.scale_by_staleness);
    EXPECT_FALSE(back.stop_if_not_finite);
    EXPECT_EQ(back.shape, spec.shape);
  }
}

TEST(Spec, OfAVersionWithoutAmsgradReadsAsBefore) {
  const std::string off = to_text(full_spec(optim::adam()));
  const std::string on = to_text(full_spec(optim::adam({.amsgrad = true})));
  EXPECT_THAT(off, ::testing::Not(::testing::HasSubstr("amsgrad")));
  EXPECT_THAT(on, ::testing::HasSubstr("amsgrad"));
  EXPECT_EQ(spec_from(off).rule.num_states(), 2);
  EXPECT_EQ(spec_from(on).rule.num_states(), 3);
}

TEST(Spec, DifferencesNameBothSides) {
  struct Case {
    std::function<void(Spec&)> change;
    std::string words;
  };
  const Spec spec = full_spec(optim::adam());
  for (const Case& c : std::vector<Case>{
           {[](Spec& s) { s.variables[0].shape = {3, 6}; },
            R"(variable 0 is "a" float32 [3, 6], not "a" float32 [3, 5])"},
           {[](Spec& s) { s.variables[0].dtype = DType::float64; },
            R"(variable 0 is "a" float64 [3, 5], not "a" float32 [3, 5])"},
           {[](Spec& s) { s.variables.pop_back(); }, "it has 1 variables, not 2"},
           {[](Spec& s) { s.rule = optim::sgd(); }, R"(the optimizer has name "sgd", not "adam")"},
           {[](Spec& s) { s.rule = optim::adamw({.weight_decay = 0}); },
            R"(the optimizer has name "adamw", not "adam")"},
           {[](Spec& s) { s.staleness = Staleness::unbounded(); },
            R"(staleness is "inf", not "3")"},
           {[](Spec& s) { s.num_workers = 5; }, "workers is 5, not 4"},
           {[](Spec& s) { s.shape = ReductionShape::flat(4); },
            R"(reduction shape is "4", not "3+1")"},
           {[](Spec& s) { s.stop_if_not_finite = true; }, "stop_if_not_finite is true, not false"},
           {[](Spec& s) { s.on_lost_worker = OnLostWorker::wait; },
            R"(on_lost_worker is "wait", not "end")"},
           {[](Spec& s) { s.delay_compensation = 0.25; }, "delay_compensation is 0.25, not 0.1"},
           {[](Spec& s) { s.pieces[0].partition = 1 - s.pieces[0].partition; },
            fmt::format(
                "its variables are placed in another way, in {0} pieces, not {0} like these",
                spec.pieces.size())},
           {[](Spec& s) { s.pieces = pieces_of(s.variables, place(s.variables, {}), 4096); },
            fmt::format("in {} pieces, not {} like these",
                        pieces_of(spec.variables, place(spec.variables, {}), 4096).size(),
                        spec.pieces.size())}}) {
    Spec other = spec;
    c.change(other);
    EXPECT_THAT(difference(other, spec), EndsWith(c.words));
  }
}

TEST(Spec, WhatBecomesOfLostWorkersIsSaidInStepAlone) {
  Spec spec{.num_workers = 3};
  for (const OnLostWorker what : {OnLostWorker::end, OnLostWorker::go_on, OnLostWorker::wait}) {
    spec.on_lost_worker = what;
    EXPECT_EQ(spec_from(to_text(spec)).on_lost_worker, what);
    EXPECT_EQ(on_lost_worker_from(name_of(what), "--x"), what);
  }
  spec.tables = {{.name = "user", .width = 2}};
  EXPECT_THAT(
      message_of<UsageError>([&] { check(spec); }),
      HasSubstr(
          "on_lost_worker: got wait, expected end or continue with embedding table \"user\""));
  spec.on_lost_worker = OnLostWorker::go_on;
  check(spec);
  spec.drop_slowest = 1;
  EXPECT_THAT(message_of<UsageError>([&] { check(spec); }),
              HasSubstr("on_lost_worker: got continue, expected end with drop_slowest 1"));
  EXPECT_THAT(message_of<UsageError>([] { on_lost_worker_from("go", "--x"); }),
              HasSubstr("--x go: expected end, continue or wait"));
}

TEST(Spec, WhatCannotBeTrainedByIsNamed) {
  struct Case {
    std::function<void(Spec&)> change;
    std::string words;
  };
  const Spec spec = full_spec(optim::sgd());
  check(spec);
  for (const Case& c : std::vector<Case>{
           {[](Spec& s) { s.num_workers = 0; }, "workers: got 0, expected 1 to"},
           {[](Spec& s) { s.num_partitions = 0; }, "partitions: got 0, expected 1 to"},
           {[](Spec& s) { s.host_sums = true; }, "host_sums: got true, expected false: "},
           {[](Spec& s) { s.drop_slowest = 4; }, "drop_slowest: got 4, expected 0 to 3"},
           {[](Spec& s) { s.drop_slowest = 1; },
            "drop_slowest: got 1, expected 0 with staleness 3"},
           {[](Spec& s) { s.on_lost_worker = OnLostWorker::go_on; },
            "on_lost_worker: got continue, expected end with staleness 3"},
           {[](Spec& s) { s.delay_compensation = -1; },
            "delay_compensation: got -1, expected 0 to"},
           {[](Spec& s) { s.delay_compensation = 0.0 / 0.0; }, "delay_compensation: got "},
           {[](Spec& s) { s.staleness = Staleness(0); },
            "scale_by_staleness: got true, expected false with staleness 0"},
           {[](Spec& s) { s.variables[1].dtype = DType::int64; },
            "variables: dtype of \"b\n\"\": got int64, expected float32 or float64"},
           {[](Spec& s) { s.variables[0].shape = {-3, -5}; },
            "variables: shape of \"a\": got [-3, -5], expected lengths of 0 or more"},
           {[](Spec& s) { s.variables[0].shape = {int64_t{1} << 40, int64_t{1} << 40}; },
            "expected lengths of 0 or more, "},
           {[](Spec& s) { s.pieces[0].partition = 2; },
            "pieces: partition: got 2, expected 0 to 1"},
           {[](Spec& s) { s.pieces[0].num_bytes += 64; }, ", expected 64, as its segments have"},
           {[](Spec& s) { s.pieces.push_back({.num_bytes = -64}); },
            "pieces: bytes: got -64, expected 0, as"},
           {[](Spec& s) { s.pieces[0].segments[0].end = 1 << 20; },
            "pieces: elements: got [0, 1048576), expected some of the 15 of variable \"a\""},
           {[](Spec& s) { s.pieces[0].segments[0].variable = 9; },
            "pieces: variable: got 9, expected 0 to 1"},
           {[](Spec& s) { s.pieces[0].segments[0].variable = -1; },
            "pieces: variable: got -1, expected 0 to 1"},
           {[](Spec& s) { s.pieces[0].segments[0].begin = -1; }, "pieces: elements: got [-1, "},
           {[](Spec& s) { s.pieces[0].segments[0].offset_bytes = 64; },
            "pieces: offset: got 64, expected 0"}}) {
    Spec other = spec;
    c.change(other);
    EXPECT_THAT(message_of<UsageError>([&] { check(other); }), HasSubstr(c.words));
  }
}

TEST(Spec, TablesComeBackAndDifferencesNameBoth) {
  Spec spec = small_spec(2, Staleness::unbounded());
  spec.tables = {{.name = "user", .width = 8, .initializer = ZeroRows{}, .seed = ~uint64_t{0}},
                 {.name = "item",
                  .width = 3,
                  .dtype = DType::float64,
                  .initializer = NormalRows{1, 0.1},
                  .most_rows = 7,
                  .idle_pushes = 9},
                 {.name = "word", .width = 1, .initializer = UniformRows{-1.0 / 3, 0.1}}};
  const Spec back = spec_from(to_text(spec));
  EXPECT_EQ(back.tables, spec.tables);
  EXPECT_EQ(difference(back, spec), "");
  Spec other = spec;
  other.tables[1].width = 4;
  EXPECT_THAT(difference(spec, other),
              AllOf(HasSubstr("table 1 is embedding table \"item\": 3 float64"),
                    HasSubstr("not embedding table \"item\": 4 float64")));
  other.tables.pop_back();
  other.tables[1].width = 3;
  EXPECT_EQ(difference(spec, other), "it has 3 embedding tables, not 2");
  const auto refused = [](Spec wrong) { return message_of<UsageError>([&] { check(wrong); }); };
  other.tables[1].name = "user";
  EXPECT_THAT(refused(other), HasSubstr("tables: name: got \"user\" twice, expected each once"));
  other.tables[1].width = 0;
  EXPECT_THAT(refused(other), HasSubstr("width is 0"));
  other = spec;
  other.delay_compensation = 0.1;
  EXPECT_THAT(refused(other),
              HasSubstr("delay_compensation: got 0.1, expected 0 with embedding table \"user\""));
}

TEST(Spec, TextsThatAreNoneAreErrors) {
  const std::string good = to_text(full_spec(optim::sgd()));
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("null"), std::string("{\"optimizer\":7}"),
        good.substr(0, good.size() / 2), std::string(100'000, '[')})
    EXPECT_THAT(message_of<Error>([&] { spec_from(text); }), HasSubstr("cannot be read"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return message_of<Error>([&] { spec_from(text); });
  };
  EXPECT_THAT(with("\"sgd\"", "\"sgx\""), AllOf(HasSubstr("sgx"), HasSubstr("sgd")));
  EXPECT_THAT(with("\"3+1\"", "\"3+x\""), HasSubstr("reduction shape"));
  EXPECT_THAT(with("\"workers\":4", "\"workers\":\"4\""),
              HasSubstr("workers: got \"4\", expected"));
  EXPECT_THAT(with("\"workers\":4", "\"workers\":1e300"),
              HasSubstr("workers: got 1e+300, expected"));
  EXPECT_THAT(with("\"momentum\":0.0", "\"momentum\":7.0"), HasSubstr("momentum"));
  EXPECT_THAT(with("\"host_sums\":false", "\"host_sums\":7"),
              AllOf(HasSubstr("host_sums: "), HasSubstr("boolean")));
  EXPECT_THAT(with("\"delay_compensation\":0.1", "\"delay_compensation\":-3"),
              HasSubstr("delay_compensation: got -3, expected 0 to 1e+30"));
}

}  // namespace
}  // namespace tutti::ps::testing
