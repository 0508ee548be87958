/// What this build's LibTorch is made of, for `tutti doctor`.
/// Thread rule: pure function.
#pragma once

#include <string>

namespace tutti::cli {

struct TorchFacts {
  std::string version;         ///< "2.13.0"
  std::string blas;            ///< "mkl", "open", ...; "unknown" when LibTorch does not say
  std::string openmp;          ///< "OpenMP 201511 (a.k.a. OpenMP 4.5)", or "none"
  std::string abi;             ///< "C++11" or "old"
  std::string cpu_capability;  ///< the instruction set that its kernels choose: "AVX2"
  int threads = 0;             ///< of one operation, unless told otherwise
};

TorchFacts torch_facts();

}  // namespace tutti::cli
