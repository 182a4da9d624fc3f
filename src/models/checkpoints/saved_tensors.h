#pragma once

#include <functional>
#include <string>
#include <vector>

#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/models/checkpoint_contents.h"

namespace vlmtrain::models {

/// Parameters of a store, which outlives them, as a saved checkpoint or adapter has them.
io::LazyTensors make_lazy_tensors(const nn::ParameterStore& store, const std::vector<nn::Parameter>& parameters,
                                  const SaveOptions& options,
                                  const std::function<std::string(const nn::Parameter&)>& get_name);

}  // namespace vlmtrain::models
