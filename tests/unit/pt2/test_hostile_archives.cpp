// Zips that are damaged, or were made to harm: each is refused by name of what is wrong, before
// anything of the size that it claims is allocated.
#include <gtest/gtest.h>

#include "tutti/pt2/archive.h"
#include "tutti/pt2/program.h"

#include "tests/support/expect.h"
#include "tests/support/pt2_files.h"
#include "tests/support/temp_folder.h"

namespace tutti::pt2 {
namespace {

const std::string kSound = "tests/tables/exported/mlp.pt2";

Archive archive_of(const std::string& bytes) {
  const auto kept = std::make_shared<const std::string>(bytes);
  return Archive(MappedFile{std::as_bytes(std::span(*kept)), kept}, "hostile.pt2");
}

/// Reads all that there is: the program, and every record.
void read_whole(const std::string& bytes) {
  const Archive archive = archive_of(bytes);
  read_program(archive);
  for (const auto& [name, record] : archive.records()) archive.read(name);
}

struct Wrong {
  std::string name;
  std::function<void(ZipFile&)> change;
  std::vector<std::string> words;  ///< that the message has, beside the file's name
};

void expect_refused(const Wrong& wrong, const std::string& bytes) {
  const auto message = message_of<DataError>([&] { read_whole(bytes); });
  EXPECT_THAT(message, HasSubstr("hostile.pt2")) << wrong.name;
  for (const std::string& word : wrong.words) EXPECT_THAT(message, HasSubstr(word)) << wrong.name;
  EXPECT_LT(message.size(), 2000u) << wrong.name;
}

TEST(HostileArchives, TheFileTheyAreMadeOfIsSound) {
  read_whole(get_bytes(kSound));
  // Put together anew, it has no alignment, no zip64 records and no fields of the writer's own.
  const ZipFile zip = read_zip(kSound);
  read_whole(zip.bytes());
  const Archive archive = archive_of(zip.bytes());
  EXPECT_EQ(archive.records().size(), zip.records.size());
  for (const ZipRecord& record : zip.records)
    EXPECT_EQ(archive.text(record.name.substr(zip.root().size())), record.bytes) << record.name;
}

TEST(HostileArchives, RecordsThatNobodyAsksForMayBeAnything) {
  ZipFile zip = read_zip(kSound);
  zip.at("data/sample_inputs/model.pt").bytes = "\x80\x02cposix\nsystem\n";  // a pickle, never read
  zip.add("extra/notes", std::string(1000, '\xff'));
  read_whole(zip.bytes());
}

TEST(HostileArchives, CutOffAnywhere) {
  const std::string whole = get_bytes(kSound);
  for (size_t size = 0; size < whole.size(); size += size + 200 < whole.size() ? 61 : 1) {
    const auto message = message_of<DataError>([&] { read_whole(whole.substr(0, size)); });
    EXPECT_THAT(message, HasSubstr("hostile.pt2")) << size;
  }
}

TEST(HostileArchives, CutOffAtTheFront) {
  const std::string whole = get_bytes(kSound);
  for (size_t from = 1; from < whole.size(); from += 97)
    EXPECT_NE(refusal_of<DataError>([&] { read_whole(whole.substr(from)); }), "") << from;
}

TEST(HostileArchives, AFlippedBitInAnyRecordIsFound) {
  const ZipFile sound = read_zip(kSound);
  for (size_t i = 0; i < sound.records.size(); ++i) {
    if (sound.records[i].bytes.empty()) continue;
    std::string bytes = sound.bytes();
    const size_t at = bytes.find(sound.records[i].name + sound.records[i].bytes);
    ASSERT_NE(at, std::string::npos);
    bytes[at + sound.records[i].name.size() + sound.records[i].bytes.size() / 2] ^= 0x10;
    const auto message = message_of<DataError>([&] { read_whole(bytes); });
    EXPECT_THAT(message, HasSubstr(sound.records[i].name.substr(sound.root().size())));
    EXPECT_THAT(message, HasSubstr("CRC-32"));
  }
}

TEST(HostileArchives, NoBitOfTheDirectoryDoesHarm) {
  // What a bit changes may be of no consequence (a date); what counts is how it ends.
  const std::string sound = read_zip(kSound).bytes();
  const size_t directory = sound.find("PK\x01\x02");
  ASSERT_NE(directory, std::string::npos);
  size_t refused = 0;
  for (size_t bit = 8 * directory; bit < 8 * sound.size(); bit += 3) {
    std::string bytes = sound;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    refused += refusal_of<DataError>([&] { read_whole(bytes); }).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, (sound.size() - directory) * 8 / 3 / 2);
}

const std::vector<Wrong>& wrongs() {
  static const std::vector<Wrong> list = {
      {"a bomb: a megabyte that would be a gigabyte",
       [](ZipFile& zip) {
         ZipRecord& record = zip.at("data/weights/weight_0");
         const std::string packed = deflated(std::string(size_t{16} << 20, '\0'));
         record = {.name = record.name, .bytes = packed, .method = 8, .size = 1u << 30};
       },
       {"weight_0", "compressed", "stored"}},
      {"stored, and larger than it is",
       [](ZipFile& zip) { zip.at("data/weights/weight_0").size = 1u << 30; },
       {"weight_0"}},
      {"both sizes beyond the file",
       [](ZipFile& zip) { zip.at(kModel).size = zip.at(kModel).stored_size = 0xfffffff0u; },
       {kModel}},
      {"zip64 sizes of 2^62",
       [](ZipFile& zip) {
         ZipRecord& record = zip.at(kModel);
         record.size = record.stored_size = 0xffffffffu;
         record.extra = std::string("\x01\x00\x10\x00", 4);
         for (int i = 0; i < 2; ++i) record.extra += std::string("\0\0\0\0\0\0\0\x40", 8);
       },
       {kModel}},
      {"zip64 sizes that are not there",
       [](ZipFile& zip) {
         zip.at(kModel).size = 0xffffffffu;
         zip.at(kModel).extra = std::string("\x01\x00\x00\x00", 4);
       },
       {kModel, "zip64"}},
      {"an extra field that is longer than its entry",
       [](ZipFile& zip) { zip.at(kModel).extra = std::string("\x01\x00\xff\x00", 4); },
       {kModel, "extra field"}},
      {"encrypted", [](ZipFile& zip) { zip.at(kModel).flags = 1; }, {kModel, "encrypted"}},
      {"a record twice",
       [](ZipFile& zip) { zip.add("data/weights/weight_0", "other"); },
       {"weight_0", "twice"}},
      {"two root folders",
       [](ZipFile& zip) { zip.records.push_back({.name = "other/version", .bytes = "1"}); },
       {"other", "root folder"}},
      {"no root folder",
       [](ZipFile& zip) { zip.records.push_back({.name = "version", .bytes = "1"}); },
       {"version", "root folder"}},
      {"two records in the same bytes",
       [](ZipFile& zip) {
         zip.records.push_back(zip.records[0]);
         zip.records.back().name[zip.records[0].name.size() - 1] ^= 1;
         zip.records.back().offset = 0;
       },
       {"header"}},
      {"a record that is the directory",
       [](ZipFile& zip) { zip.at(kModel).offset = 0x7fffffff; },
       {"header"}},
      {"a record at bytes that are no header",
       [](ZipFile& zip) { zip.at(kModel).offset = 3; },
       {kModel, "header"}},
      {"more records than there are", [](ZipFile& zip) { zip.count = 0xfffe; }, {"65534"}},
      {"fewer records than there are: the program is not among them",
       [](ZipFile& zip) { zip.count = 1; },
       {"hostile.pt2"}},
      {"a directory beyond the file",
       [](ZipFile& zip) { zip.directory_offset = 0xfffffff0u; },
       {"directory"}},
      {"another format",
       [](ZipFile& zip) { zip.at("archive_format").bytes = "pt1"; },
       {"archive_format", "pt1", "expected pt2"}},
      {"another version of the archive",
       [](ZipFile& zip) { zip.at("archive_version").bytes = "1"; },
       {"archive_version", "expected 0"}},
      {"another order of bytes",
       [](ZipFile& zip) { zip.at("byteorder").bytes = "big"; },
       {"byteorder", "big", "expected little"}},
      {"no format: what torch.save and TorchScript write",
       [](ZipFile& zip) { zip.erase("archive_format"); },
       {"archive_format", "torch.save"}},
      {"no program", [](ZipFile& zip) { zip.erase(kModel); }, {kModel}},
      {"no weights' table", [](ZipFile& zip) { zip.erase(kWeights); }, {kWeights}},
      {"no record of a weight",
       [](ZipFile& zip) { zip.erase("data/weights/weight_1"); },
       {"weight_1"}},
      {"an empty record where a weight should be",
       [](ZipFile& zip) { zip.at("data/weights/weight_0").bytes = ""; },
       {"weight_0"}},
  };
  return list;
}

TEST(HostileArchives, EachIsRefusedByNameOfWhatIsWrong) {
  for (const Wrong& wrong : wrongs()) {
    ZipFile zip = read_zip(kSound);
    wrong.change(zip);
    expect_refused(wrong, zip.bytes());
  }
}

TEST(HostileArchives, NoZipAtAll) {
  for (const std::string& bytes :
       {std::string(), std::string("PK"), std::string(1000, 'x'), std::string(100'000, '\0'),
        std::string("PK\x05\x06") + std::string(18, '\0')})
    EXPECT_NE(refusal_of<DataError>([&] { read_whole(bytes); }), "") << bytes.size();
}

TEST(HostileArchives, AFileThatIsNotThereOrIsAFolder) {
  const TempFolder folder;
  EXPECT_THAT(message_of<DataError>([&] { Archive archive(folder / "none.pt2"); }),
              HasSubstr("none.pt2"));
  EXPECT_THAT(message_of<DataError>([&] { Archive archive(folder.path()); }),
              HasSubstr(folder.path().string()));
}

}  // namespace
}  // namespace tutti::pt2
