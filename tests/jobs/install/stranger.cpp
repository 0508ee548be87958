// Uses the umbrella header alone, and one thing from each end of the ladder.
#include <tutti/tutti.h>

#include <cstdio>

// What the documentation and our messages tell users to call is in the one header.
using tutti::broadcast_parameters;
using tutti::DistributedOptimizer;
using tutti::install_stop_handler;
using tutti::load_weights;
using tutti::Model;
using tutti::save_weights;
using tutti::data::from_arrays;
using tutti::data::read_npy;
using tutti::data::read_safetensors;
using tutti::models::doodle_cnn;
using tutti::nn::Dropout;
using tutti::nn::GraphModule;
using tutti::nn::make_module;
using tutti::nn::SampleContext;

int main() {
  const auto ones = torch::ones({2, 3});
  const auto bytes = ones.numel() * tutti::size_of(tutti::dtype_of<float>());
  std::printf("stranger: %lld bytes of %s\n", static_cast<long long>(bytes),
              std::string(tutti::name_of(tutti::DType::float32)).c_str());
}
