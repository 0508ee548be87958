/// Where the comparisons find what they run, and where they put what they compile.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tutti::bench {

/// `tutti`, beside this program. UsageError where it was not built.
std::filesystem::path tutti_program();

/// The checkout that holds bench/peer, seen from this program's folder and from the working one.
/// Programs of it are run: it belongs to whom this program does, or to this user. UsageError when
/// there is none.
std::filesystem::path checkout();

/// `folder`, or the nearest above it, that holds bench/peer and belongs to one of these users;
/// empty: none.
std::filesystem::path checkout_above(std::filesystem::path folder,
                                     const std::vector<uint32_t>& owners);

/// The name of a file that is not there yet, in a new folder that is this user's alone: programs
/// are compiled to it, and run. What somebody puts there is gone with this object.
class ScratchFile {
 public:
  ScratchFile();
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  std::string path() const { return (folder_ / "file").string(); }

 private:
  std::filesystem::path folder_;
};

}  // namespace tutti::bench
