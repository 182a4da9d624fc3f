#include "models/adapters/output_module.h"

#include <algorithm>

namespace vlmtrain::models {

namespace {

const nn::Parameter* find_output_parameter(const VisionLanguageModel& model) {
  const auto& all = model.parameters().all();
  const at::Tensor& output = model.output_weight();
  const auto it =
      std::ranges::find_if(all, [&](const nn::Parameter& parameter) { return parameter.tensor.is_same(output); });
  return it == all.end() ? nullptr : &*it;
}

}  // namespace

const nn::Parameter* find_tied_embedding(const VisionLanguageModel& model) {
  const nn::Parameter* const output = find_output_parameter(model);
  return output != nullptr && output->is_embedding ? output : nullptr;
}

std::string find_output_module(const VisionLanguageModel& model) {
  const nn::Parameter* const output = find_output_parameter(model);
  if (output == nullptr) return "lm_head";
  if (!output->is_embedding) return output->name.substr(0, output->name.rfind('.'));
  // nanoVLM's decoder has its head within.
  return output->name.starts_with("decoder.") ? "decoder.head" : "lm_head";
}

}  // namespace vlmtrain::models
