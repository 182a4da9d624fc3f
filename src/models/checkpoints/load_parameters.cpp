#include "models/checkpoints/load_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "models/checkpoints/overflow.h"
#include "models/checkpoints/tied_output.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::models {

namespace {

/// Name suffixes of buffers that older transformers releases save. Their values are computed from
/// the config instead.
constexpr std::string_view kComputedTableSuffixes[] = {".rotary_emb.inv_freq", ".rotary_embd.inv_freq",
                                                       ".embeddings.position_ids"};

std::string format_shape(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

}  // namespace

std::vector<std::string> truncate_list(std::vector<std::string> items) {
  constexpr size_t kMaxItems = 20;  // fills about one screen
  if (items.size() > kMaxItems) {
    items.resize(kMaxItems);
    items.emplace_back("…");
  }
  return items;
}

std::string describe_shape_mismatch(const nn::Parameter& parameter, at::IntArrayRef shape) {
  if (parameter.sizes() == shape) return "";
  return fmt::format("{} has shape {}, but the config requires {}", parameter.name, format_shape(shape),
                     format_shape(parameter.sizes()));
}

std::string describe_missing_tensor(const std::string& name) {
  const char* const hint =
      is_output_projection(name) ? " (set tie_word_embeddings: true if the model ties it to the embedding)" : "";
  return fmt::format("missing: {}{}", name, hint);
}

std::string describe_unsupported_dtype(std::string_view name, at::ScalarType dtype) {
  constexpr std::array kSupportedWeightDtypes{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
  if (std::ranges::find(kSupportedWeightDtypes, dtype) != kSupportedWeightDtypes.end()) return "";
  return fmt::format("{} has dtype {}, which is not a weight dtype; use a checkpoint in F32, BF16 or F16", name,
                     io::to_safetensors_dtype(dtype));
}

bool differs_only_in_rows(const nn::Parameter& parameter, at::IntArrayRef shape) {
  const auto sizes = parameter.sizes();
  return sizes.size() == 2 && shape.size() == 2 && sizes[1] == shape[1] && shape[0] > 0;
}

void copy_rows_to_parameter(const nn::Parameter& parameter, const at::Tensor& table) {
  const at::Tensor rows = parameter.tensor.detach();
  const int64_t num_copied_rows = std::min(rows.size(0), table.size(0));
  rows.narrow(0, 0, num_copied_rows).copy_(table.narrow(0, 0, num_copied_rows));
  if (num_copied_rows < rows.size(0))
    rows.narrow(0, num_copied_rows, rows.size(0) - num_copied_rows).copy_(table.mean(0, /*keepdim=*/true, at::kFloat));
}

at::Tensor resize_table_rows(const nn::Parameter& parameter, const at::Tensor& table) {
  const at::NoGradGuard no_gradients;
  nn::Parameter rows = parameter;
  rows.tensor = at::empty(parameter.sizes(), table.options());
  copy_rows_to_parameter(rows, table);
  return rows.tensor;
}

void check_loaded_values(const nn::Parameter& parameter, std::string_view name, const at::Tensor& values,
                         bool may_be_non_finite, const std::string& headline) {
  const std::string source = headline.substr(0, headline.find(": "));
  if (const std::string non_finite = describe_first_non_finite_value(values); !non_finite.empty()) {
    if (!may_be_non_finite && !parameter.is_embedding) {
      throw data_error("{}: {} has {}, an invalid weight; use an undamaged copy, or an earlier checkpoint", source,
                       name, non_finite);
    }
    spdlog::warn("{}: {} has {}, an invalid weight; answers and losses that use it become NaN or infinite", source,
                 name, non_finite);
  }
  if (parameter.quantized_weight != nullptr) return;
  if (const std::string problem = describe_overflow(name, values, parameter.tensor.scalar_type()); !problem.empty()) {
    throw data_error("{}: {}; compute in bf16 or fp32 ({})", source, problem, keys::training::kPrecision);
  }
}

bool is_computed_table(std::string_view name) {
  return std::ranges::any_of(kComputedTableSuffixes,
                             [name](std::string_view suffix) { return name.ends_with(suffix); });
}

bool may_be_unused(std::string_view name) {
  return is_output_projection(name) || is_computed_table(name);
}

void throw_if_problems(const std::string& headline, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw data_error("{} ({} differences):\n  {}", headline, problems.size(), fmt::join(truncate_list(problems), "\n  "));
}

}  // namespace vlmtrain::models
