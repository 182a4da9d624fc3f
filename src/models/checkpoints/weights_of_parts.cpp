#include "models/checkpoints/weights_of_parts.h"

#include "models/checkpoints/weights.h"

namespace vlmtrain::models {

namespace {

io::LazyTensor random_weight(const VisionLanguageModel& model, const nn::Parameter& parameter, at::ScalarType dtype,
                             uint64_t seed) {
  return {.name = model.checkpoint_name(parameter.name),
          .dtype = dtype,
          .shape = parameter.sizes().vec(),
          .make = [parameter, dtype, seed] { return initial_values(parameter, seed).to(dtype); }};
}

}  // namespace

int64_t WeightsOfParts::bytes() const {
  int64_t bytes = 0;
  for (const auto& weight : weights) bytes += weight.bytes();
  return bytes;
}

WeightsOfParts weights_of_parts(const VisionLanguageModel& model, const std::vector<PartWeight>& parts,
                                at::ScalarType dtype, uint64_t seed) {
  WeightsOfParts made{.weights = {}, .taken = std::vector<int64_t>(parts.size())};
  for (const auto& parameter : own_parameters(model)) {
    std::optional<io::LazyTensor> weight;
    for (size_t part = 0; part < parts.size() && !weight; ++part) {
      weight = parts[part](parameter);
      if (weight) ++made.taken[part];
    }
    if (!weight) {
      ++made.at_random;
      made.modules_at_random.insert(parameter.name.substr(0, parameter.name.find('.')));
      weight = random_weight(model, parameter, dtype, seed);
    }
    made.weights.push_back(*std::move(weight));
  }
  io::NamedTensors tables;
  model.complete_weights(tables);
  for (auto& table : io::lazily(tables)) made.weights.push_back(std::move(table));
  return made;
}

}  // namespace vlmtrain::models
