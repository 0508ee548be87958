#include <string>
#include <vector>

#include "tutti/data/npy.h"
#include "tutti/data/sources/detail/record_sources.h"
#include "tutti/data/sources/detail/tar.h"
#include "tutti/data/sources/webdataset.h"

#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/unit/data/gzip_support.h"
#include "tests/unit/data_sources/record_samples.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;
using detail::append_tar_member;
using detail::tar_end;
using detail::webdataset_source;

constexpr int64_t kInTar = 9;

std::string tar_of(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string tar;
  for (const auto& [name, data] : members) append_tar_member(tar, name, data);
  return tar + tar_end();
}

TEST(Webdataset, ReadsWhatWebdatasetWrote) {
  const TempFolder folder;
  const fs::path tar = copied(folder, "wds.tar");
  for (int run = 0; run < 2; ++run) {  // without an index, and with one
    const auto source = webdataset_source(tar, {.columns = {"jpg;png", "x.npy", "json", "cls"}});
    ASSERT_EQ(source->num_rows(), kInTar);
    EXPECT_EQ(source->columns()[0].to_string(), "jpg uint8 [?]");
    EXPECT_EQ(source->columns()[1].to_string(), "x.npy float32 [2, 3]");
    EXPECT_EQ(source->columns()[3].to_string(), "cls int64 []");
    for (int64_t i = 0; i < kInTar; ++i) {
      const Sample sample = source->read_row(i);
      EXPECT_EQ(text_of(sample.columns[0]), image_at(i));
      EXPECT_EQ(elements<float>(sample.columns[1]), x_at(i));
      EXPECT_THAT(std::string(text_of(sample.columns[2])), HasSubstr("\"text\""));
      EXPECT_THAT(elements<int64_t>(sample.columns[3]), ElementsAre(label_of(i)));
    }
    EXPECT_THAT(source->where(3), HasSubstr("wds.tar, sample \"photos/0003\" (byte "));
  }
  EXPECT_THAT(folder.names(), ElementsAre("wds.tar", "wds.tar.tutti-index"));
  EXPECT_THAT(verify_webdataset(tar, {"jpg;png", "cls"}), IsEmpty());
  EXPECT_EQ(webdataset_endings(tar),
            (std::vector<std::string>{"cls", "json", "x.npy", "png", "jpg"}));
}

TEST(Webdataset, GroupsByTheNameUpToTheFirstDot) {
  const TempFolder folder;
  put_bytes(folder / "a.tar", tar_of({{"README", "no dot"},
                                      {"d.ir/one.txt", "1"},
                                      {"d.ir/.hidden", "x"},
                                      {"d.ir/one.seg.TXT", "1s"},
                                      {"two.txt", "2"},
                                      {"two.seg.txt", "2s"}}));
  put_bytes(folder / "b.tar", tar_of({{"two.txt", "3"}, {"two.seg.txt", "3s"}}));
  const auto source = webdataset_source(folder.path(), {.columns = {"txt", "seg.txt"}});
  ASSERT_EQ(source->num_rows(), 3);
  std::vector<std::string> all;
  for (int64_t row = 0; row < 3; ++row)
    for (const Array& array : source->read_row(row).columns) all.emplace_back(text_of(array));
  EXPECT_THAT(all, ElementsAre("1", "1s", "2", "2s", "3", "3s"));
  EXPECT_THAT(source->first_rows_of_files(), ElementsAre(0, 2));
}

// Against the tar of this machine, in each of its formats.
TEST(Tar, ReadsEveryFormatOfTheTarProgram) {
  const TempFolder folder;
  const std::string long_name = std::string(90, 'd') + "/" + std::string(90, 'f') + ".txt";
  fs::create_directories(folder / ("in/" + std::string(90, 'd')));
  put_bytes(folder / ("in/" + long_name), "long");
  put_bytes(folder / "in/short.txt", std::string(1000, 's'));
  fs::create_symlink("short.txt", folder / "in/link.txt");
  for (const std::string format : {"gnu", "pax", "ustar", "oldgnu"}) {
    const fs::path tar = folder / (format + ".tar");
    const std::string command = fmt::format("tar --format={} --sort=name -C {} -cf {} .", format,
                                            (folder / "in").string(), tar.string());
    ASSERT_EQ(std::system(command.c_str()), 0);
    detail::FileWindow window(*local_files(), tar);
    std::vector<std::string> seen;
    detail::for_each_member(window, [&](const std::string& name, int64_t offset, int64_t bytes) {
      seen.push_back(name);
      const std::string data =
          get_bytes(tar).substr(static_cast<size_t>(offset), static_cast<size_t>(bytes));
      EXPECT_EQ(data, name.ends_with("short.txt") ? std::string(1000, 's') : "long");
    });
    EXPECT_THAT(seen, ElementsAre("./" + long_name, "./short.txt")) << format;
  }
}

TEST(Tar, TheTarProgramReadsOurs) {
  const TempFolder folder;
  const std::string long_name = std::string(150, 'n') + ".txt";
  put_bytes(folder / "a.tar",
            tar_of({{"a.txt", "A"}, {long_name, std::string(512, 'B')}, {"c.txt", ""}}));
  fs::create_directory(folder / "out");
  ASSERT_EQ(std::system(fmt::format("tar -C {} -xf {}", (folder / "out").string(),
                                    (folder / "a.tar").string())
                            .c_str()),
            0);
  EXPECT_EQ(get_bytes(folder / "out/a.txt"), "A");
  EXPECT_EQ(get_bytes(folder / ("out/" + long_name)), std::string(512, 'B'));
  EXPECT_EQ(fs::file_size(folder / "out/c.txt"), 0u);
}

TEST(Tar, NumbersAreOctalOrBinary) {
  std::string tar;
  append_tar_member(tar, "a.txt", "abc");
  const auto with_size = [&](std::string size) {
    size.resize(12, '\0');
    std::string block = tar.substr(0, 512);
    block.replace(124, 12, size);
    block.replace(148, 8, 8, ' ');
    int sum = 0;
    for (const char byte : block) sum += static_cast<unsigned char>(byte);
    return block.replace(148, 7, fmt::format("{:06o}", sum) + '\0');
  };
  EXPECT_EQ(detail::parse_tar_header(with_size("00000000017\0")).bytes, 15);
  EXPECT_EQ(detail::parse_tar_header(with_size("        17 \0")).bytes, 15);
  std::string binary("\x80\0\0\0\0\0\0\2\0\0\0\1", 12);
  EXPECT_EQ(detail::parse_tar_header(with_size(binary)).bytes, (int64_t{2} << 32) + 1);
  EXPECT_THROW(detail::parse_tar_header(with_size(std::string(12, '\xff'))), DataError);
  EXPECT_THROW(detail::parse_tar_header(with_size("0000000001x\0")), DataError);
  EXPECT_THROW(detail::parse_tar_header(std::string(512, 'x')), DataError);
  EXPECT_THROW(detail::parse_tar_header("short"), DataError);
}

TEST(Webdataset, ATarCutAnywhereIsRefused) {
  const TempFolder folder;
  const std::string whole = tar_of({{"a.txt", "A"}, {"b.txt", std::string(600, 'b')}});
  // The last block of zeros is not missed: some writers leave it out.
  for (size_t bytes = 0; bytes < whole.size() - 512; bytes += 100) {
    put_bytes(folder / "a.tar", whole.substr(0, bytes));
    EXPECT_THAT(message_of<DataError>([&] { webdataset(folder / "a.tar", {.columns = {"txt"}}); }),
                AllOf(HasSubstr("a.tar, byte "), HasSubstr("cut off")))
        << bytes;
    EXPECT_THAT(verify_webdataset(folder / "a.tar", {"txt"}), SizeIs(1));
  }
}

TEST(Webdataset, OtherBadTarsSayWhy) {
  const TempFolder folder;
  const auto failure = [&](const std::string& bytes) {
    put_bytes(folder / "a.tar", bytes);
    return refusal_of<Error>([&] { webdataset(folder / "a.tar", {.columns = {"txt"}}); });
  };
  const std::string whole = tar_of({{"a.txt", "A"}, {"b.txt", "B"}});
  EXPECT_THAT(failure(gzip(whole)), AllOf(HasSubstr("packed"), HasSubstr("gunzip")));
  EXPECT_THAT(failure("\x28\xb5\x2f\xfd rest"), HasSubstr("unzstd"));
  EXPECT_THAT(failure(std::string(5000, 'x')),
              AllOf(HasSubstr("checksum"), HasSubstr("may be no tar")));
  std::string damaged = whole;
  damaged[1024] = 'x';  // the name of the second
  EXPECT_THAT(failure(damaged), AllOf(HasSubstr("byte 1024"), HasSubstr("checksum")));
  EXPECT_THAT(failure(whole + whole), HasSubstr("follow the end"));
  EXPECT_THAT(failure(tar_of({{"a.txt", "A"}, {"a.TXT", "A"}})),
              AllOf(HasSubstr("sample \"a\" (byte 0)"), HasSubstr("twice")));
  EXPECT_THAT(failure(tar_end()), HasSubstr("no sample"));
  EXPECT_EQ(failure(whole), "");
}

TEST(Webdataset, ASampleThatLacksAMemberIsNamedWhenItIsRead) {
  const TempFolder folder;
  put_bytes(folder / "a.tar", tar_of({{"a.jpg", "A"},
                                      {"a.cls", "1"},
                                      {"b.jpg", "B"},
                                      {"c.jpg", "C"},
                                      {"c.cls", "3\n"},
                                      {"d.jpg", "D"},
                                      {"d.cls", "cat"}}));
  testing::internal::CaptureStderr();
  const auto source = webdataset_source(folder / "a.tar", {.columns = {"jpg", "cls"}});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("1 of 4 samples have no member \"cls\""), HasSubstr("sample \"b\"")));
  EXPECT_THAT(elements<int64_t>(source->read_row(2).columns[1]), ElementsAre(3));
  EXPECT_THAT(message_of<DataError>([&] { source->read_row(1); }),
              AllOf(HasSubstr("a.tar, sample \"b\" (byte 2048)"), HasSubstr("no member \"cls\""),
                    HasSubstr("b.jpg")));
  EXPECT_THAT(message_of<DataError>([&] { source->read_row(3); }),
              AllOf(HasSubstr("sample \"d\""), HasSubstr("got \"cat\"")));
  const auto found = verify_webdataset(folder / "a.tar", {"jpg", "cls"});
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].to_string(),
              HasSubstr("a.tar, record 1 (byte 2048): sample \"b\": there is"));

  EXPECT_THAT(
      message_of<UsageError>([&] { webdataset(folder / "a.tar", {.columns = {"jpgg", "cls"}}); }),
      AllOf(HasSubstr("\"jpgg\""), HasSubstr("jpg, cls")));
  EXPECT_THROW(webdataset(folder / "a.tar", {}), UsageError);
  EXPECT_THROW(webdataset(folder / "a.tar", {.columns = {"jpg;"}}), UsageError);
  EXPECT_THROW(webdataset(folder / "a.tar", {.columns = {"jpg", "png;jpg"}}), UsageError);
  EXPECT_THROW(webdataset(folder / "a.tar", {.columns = {"jpg;cls"}}), UsageError);
}

TEST(Webdataset, ArraysAreAsInTheFirstSample) {
  const TempFolder folder;
  const auto npy = [](int64_t rows) {
    return npy_bytes(array_of(std::vector<float>(static_cast<size_t>(rows)), {rows}));
  };
  put_bytes(folder / "a.tar",
            tar_of({{"a.npy", npy(3)}, {"b.npy", npy(4)}, {"c.npy", npy(3).substr(0, 100)}}));
  const auto source = webdataset_source(folder / "a.tar", {.columns = {"npy"}});
  EXPECT_EQ(source->columns()[0].to_string(), "npy float32 [3]");
  EXPECT_THAT(message_of<DataError>([&] { source->read_row(1); }),
              AllOf(HasSubstr("sample \"b\""), HasSubstr("float32 [4], expected")));
  EXPECT_THAT(message_of<DataError>([&] { source->read_row(2); }), HasSubstr("sample \"c\""));
  const auto any = webdataset_source(folder / "a.tar", {.columns = {"npy"}, .any_sizes = true});
  EXPECT_EQ(any->columns()[0].to_string(), "npy float32 [?]");
  EXPECT_EQ(any->read_row(1).columns[0].to_string(), "float32 [4]");
  EXPECT_THROW(any->read_row(2), DataError);
}

TEST(WriteWebdataset, ReadsBackAndVerifies) {
  const TempFolder folder;
  const std::vector<Column> columns = {{"x", DType::float32, {2, 3}},
                                       {"image", DType::uint8, {kAnySize}},
                                       {"json", DType::uint8, {kAnySize}},
                                       {"small", DType::int16, {}},
                                       {"y", DType::int64, {}}};
  const auto sample = [](int64_t i) {
    return Sample{{array_of(x_at(i), {2, 3}),
                   bytes_of(i % 2 == 0 ? "\xff\xd8\xff photo" : "\x89PNG photo"), bytes_of("{}"),
                   scalar(static_cast<int16_t>(-i)), scalar(label_of(i))}};
  };
  int64_t next = 0;
  const Written written = write_webdataset(folder / "out", columns,
                                           [&]() -> std::optional<Sample> {
                                             if (next == 20) return std::nullopt;
                                             return sample(next++);
                                           },
                                           {.shard_bytes = 30'000});
  EXPECT_EQ(written.samples, 20);
  EXPECT_GT(written.files.size(), 2u);
  for (const fs::path& file : written.files) EXPECT_LE(fs::file_size(file), 30'000u);
  const std::vector<std::string> read{"x.npy", "image.jpg;image.png", "json", "small.cls", "y.cls"};
  EXPECT_THAT(verify_webdataset(folder / "out", read), IsEmpty());
  const auto source = webdataset_source(folder / "out", {.columns = read});
  ASSERT_EQ(source->num_rows(), 20);
  for (int64_t i = 0; i < 20; ++i) {
    const Sample back = source->read_row(i);
    for (const size_t c : {0, 1, 2, 4}) EXPECT_TRUE(same(back.columns[c], sample(i).columns[c]));
    EXPECT_THAT(elements<int64_t>(back.columns[3]), ElementsAre(-i));
  }
  EXPECT_THROW(write_webdataset(folder / "out", columns, [] { return std::nullopt; }), UsageError);
}

}  // namespace
}  // namespace tutti::data
