// Weights of a Python program go on here, and back: safetensors for weights, .npy for arrays.
#include <tutti/tutti.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);
  if (argc != 6) {
    std::puts("usage: 09_from_python NETWORK WEIGHTS INPUTS.npy OUTPUTS.npy SAVED");
    return 2;
  }
  const std::string network = argv[1], weights = argv[2], saved = argv[5];
  const tutti::Array inputs = tutti::data::read_npy(argv[3]);  // float32 [samples, ...]
  const tutti::nn::Shape sample(inputs.shape().begin() + 1, inputs.shape().end());

  tutti::Model model(strategy, [&] {
    return tutti::models::model_by_name(network, {.classes = 10, .input = sample});
  });
  model.load(weights);  // by name: all of them, or an error that lists what does not fit
  const auto outputs = model.predict(tutti::data::from_arrays({inputs}).batch(8)).contiguous();
  model.save(saved);

  if (strategy.world().first_rank != 0) return 0;
  tutti::data::write_npy(argv[4], tutti::Array::view(outputs.data_ptr(), tutti::DType::float32,
                                                     outputs.sizes().vec(), nullptr));
  std::printf("%s: %lld samples, weights %s\n", network.c_str(),
              static_cast<long long>(outputs.size(0)), model.weights_sha256().c_str());
}
