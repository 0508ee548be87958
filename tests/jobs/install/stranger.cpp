// Uses the umbrella header and one thing from each end of the ladder.
#include <tutti/tutti.h>

#include <cstdio>

int main() {
  const auto ones = torch::ones({2, 3});
  const auto bytes = ones.numel() * tutti::size_of(tutti::dtype_of<float>());
  std::printf("stranger: %lld bytes of %s\n", static_cast<long long>(bytes),
              std::string(tutti::name_of(tutti::DType::float32)).c_str());
}
