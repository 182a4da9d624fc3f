#include "models/checkpoints/weights_of_parts.h"

#include "models/checkpoints/weights.h"

namespace vlmtrain::models {

namespace {

io::LazyTensor make_random_weight(const VisionLanguageModel& model, const nn::Parameter& parameter,
                                  at::ScalarType dtype, uint64_t seed) {
  return {.name = model.checkpoint_name(parameter.name),
          .dtype = dtype,
          .shape = parameter.sizes().vec(),
          .materialize = [parameter, dtype, seed] { return make_initial_values(parameter, seed).to(dtype); }};
}

}  // namespace

int64_t CombinedWeights::bytes() const {
  int64_t bytes = 0;
  for (const auto& weight : weights) bytes += weight.bytes();
  return bytes;
}

CombinedWeights combine_weights(const VisionLanguageModel& model, const std::vector<WeightSource>& sources,
                                at::ScalarType dtype, uint64_t seed) {
  CombinedWeights result{.weights = {}, .num_tensors = std::vector<int64_t>(sources.size())};
  for (const auto& parameter : get_base_parameters(model)) {
    std::optional<io::LazyTensor> weight;
    for (size_t source = 0; source < sources.size() && !weight; ++source) {
      weight = sources[source](parameter);
      if (weight) ++result.num_tensors[source];
    }
    if (!weight) {
      ++result.num_random_tensors;
      result.random_modules.insert(parameter.name.substr(0, parameter.name.find('.')));
      weight = make_random_weight(model, parameter, dtype, seed);
    }
    result.weights.push_back(*std::move(weight));
  }
  io::NamedTensors tables;
  model.complete_weights(tables);
  for (auto& table : io::make_lazy_tensors(tables)) result.weights.push_back(std::move(table));
  return result;
}

}  // namespace vlmtrain::models
