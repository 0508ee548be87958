/// What this build's LibTorch is made of, for `tutti doctor`.
/// Thread rule: pure function.
#pragma once

#include <string>
#include <string_view>

namespace tutti::cli {

struct TorchFacts {
  std::string version;         ///< "2.13.0"
  std::string tried;           ///< versions that tutti was tried with: "2.6,2.13"
  std::string blas;            ///< "mkl", "open", ...; "unknown" when LibTorch does not say
  std::string openmp;          ///< "OpenMP 201511 (a.k.a. OpenMP 4.5)", or "none"
  std::string abi;             ///< "C++11" or "old"
  std::string cpu_capability;  ///< the instruction set that its kernels choose: "AVX2"
  std::string dense_kernel;    ///< that multiplies the matrices of dense layers
  std::string cuda;            ///< version that it runs with: "13.0"; empty without
  int threads = 0;             ///< of one operation, unless told otherwise
};

TorchFacts torch_facts();

/// Whether `version` ("2.13.0") is of one of the major and minor versions in `tried`.
bool was_tried(std::string_view version, std::string_view tried);

}  // namespace tutti::cli
