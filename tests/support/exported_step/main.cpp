// exported_step NET.pt2 REFERENCE.safetensors: takes the reference's steps, prints how far they are
// from eager PyTorch's as a line of JSON. tools/zoo_export runs it for each network.
#include <cstdio>
#include <exception>

#include "tests/support/exported_step/against_eager.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: exported_step NET.pt2 REFERENCE.safetensors\n");
    return 2;
  }
  try {
    std::puts(tutti::test::against_eager(argv[1], argv[2]).json().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exported_step: %s\n", error.what());
    return 2;
  }
}
