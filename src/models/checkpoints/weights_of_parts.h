#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// A parameter's weight in one of the parts that a model is put together from, under the checkpoint's name; nothing
/// where the part has none.
using WeightSource = std::function<std::optional<io::LazyTensor>(const nn::Parameter& parameter)>;

/// All weights of a model that is put together.
struct CombinedWeights {
  io::LazyTensors weights;                 ///< as its checkpoint has them, tables that are computed included
  std::vector<int64_t> num_tensors;        ///< tensors of each part
  int64_t num_random_tensors = 0;          ///< tensors that no part has
  std::set<std::string> random_modules{};  ///< the modules that those are in

  int64_t bytes() const;
};

/// Of `model`, which may be on the meta device: each from the first part that has it, else at random from `seed`, in
/// `dtype`.
CombinedWeights combine_weights(const VisionLanguageModel& model, const std::vector<WeightSource>& sources,
                                at::ScalarType dtype, uint64_t seed);

}  // namespace vlmtrain::models
