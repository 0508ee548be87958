/// What tests need to start programs under Open MPI's launcher.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tutti::test {

/// Lets Open MPI's launcher run as root, and start more ranks than there are cores.
inline std::vector<std::string> launcher_settings() {
  return {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
          "OMPI_MCA_rmaps_base_oversubscribe=1",                   // Open MPI 4
          "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",  // and 5
          "OMPI_MCA_btl_base_warn_component_unused=0"};
}

/// This binary, for a launcher that starts its rank programs.
inline std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

}  // namespace tutti::test
