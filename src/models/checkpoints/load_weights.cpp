#include "models/checkpoints/load_weights.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <vector>

#include "models/checkpoints/config_checks.h"
#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/tensor_names.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::models {

namespace {

/// Elements per task of at::parallel_for. Chosen without measurement.
constexpr int64_t kElementsPerTask = 1 << 18;

/// Returns true if a value has all bits of the mask `exponent` set, that is, if it is infinite or
/// NaN.
template <class Bits>
bool has_all_ones_exponent(const at::Tensor& values, Bits exponent) {
  const auto* const bits = static_cast<const Bits*>(values.const_data_ptr());
  std::atomic<bool> has_match = false;
  at::parallel_for(0, values.numel(), kElementsPerTask, [&](int64_t begin, int64_t end) {
    unsigned has_task_match = 0;
    for (int64_t i = begin; i < end; ++i) has_task_match |= static_cast<unsigned>((bits[i] & exponent) == exponent);
    if (has_task_match != 0) has_match = true;
  });
  return has_match;
}

bool has_non_finite_values(const at::Tensor& values) {
  const bool is_dense_cpu = values.is_cpu() && values.is_contiguous();
  if (is_dense_cpu && values.scalar_type() == at::kBFloat16) return has_all_ones_exponent<uint16_t>(values, 0x7F80);
  if (is_dense_cpu && values.scalar_type() == at::kHalf) return has_all_ones_exponent<uint16_t>(values, 0x7C00);
  if (is_dense_cpu && values.scalar_type() == at::kFloat) return has_all_ones_exponent<uint32_t>(values, 0x7F800000);
  return !at::isfinite(values).all().item<bool>();
}

/// Returns "1e+05 at [0, 3]" for the first element selected by `mask`.
std::string describe_first_masked_value(const at::Tensor& values, const at::Tensor& mask) {
  const auto position = mask.flatten().to(at::kByte).argmax().item<int64_t>();
  std::vector<int64_t> index(static_cast<size_t>(values.dim()));
  int64_t remaining = position;
  for (size_t axis = index.size(); axis > 0; --axis) {
    const int64_t size = values.size(static_cast<int64_t>(axis) - 1);
    index[axis - 1] = remaining % size;
    remaining /= size;
  }
  return fmt::format("{:.6g} at [{}]", values.flatten()[position].item<double>(), fmt::join(index, ", "));
}

double get_max_finite_value(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return 65504;
    case at::kBFloat16:
      return 3.3895313892515355e38;
    case at::kFloat:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::infinity();
  }
}

bool has_wider_range(at::ScalarType from, at::ScalarType to) {
  return get_max_finite_value(from) > get_max_finite_value(to);
}

/// Returns a mask of the finite values that round to infinity in `dtype`: those that exceed its
/// largest number by half a unit in the last place or more.
at::Tensor make_overflow_mask(const at::Tensor& values, at::ScalarType dtype) {
  return at::isfinite(values).logical_and(at::isfinite(values.to(dtype)).logical_not());
}

}  // namespace

std::string describe_first_non_finite_value(const at::Tensor& values) {
  if (!c10::isFloatingType(values.scalar_type()) || values.numel() == 0 || values.is_meta()) return "";
  if (!has_non_finite_values(values)) return "";
  return describe_first_masked_value(values, at::isfinite(values).logical_not());
}

bool overflows(const at::Tensor& values, at::ScalarType dtype) {
  if (!has_wider_range(values.scalar_type(), dtype) || values.numel() == 0 || values.is_meta()) return false;
  if (dtype == at::kHalf) {
    // Compares in place, because a converted copy would double the memory. 65520 is the least
    // number that float16 rounds to infinity (65504 plus half a unit in the last place).
    constexpr double kHalfOverflowThreshold = 65520;
    const auto [smallest, largest] = at::aminmax(values);
    const double low = smallest.item<double>(), high = largest.item<double>();
    if (low > -kHalfOverflowThreshold && high < kHalfOverflowThreshold) return false;
  }
  return make_overflow_mask(values, dtype).any().item<bool>();
}

std::string describe_overflow(std::string_view name, const at::Tensor& values, at::ScalarType dtype) {
  if (!overflows(values, dtype)) return "";
  return fmt::format("{} has {}, which is infinite in {}", name,
                     describe_first_masked_value(values, make_overflow_mask(values, dtype)),
                     io::to_safetensors_dtype(dtype));
}

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
  // A range of the checkpoint may have infinite bounds.
  if (parameter.component == nn::Component::kBuffer && !at::isnan(values).any().item<bool>()) return;
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

bool is_kept_untrained(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {"mtp.", "model.audio_tower.", "model.embed_audio."};
  return std::ranges::any_of(kPrefixes, [name](std::string_view prefix) { return name.starts_with(prefix); });
}

bool may_be_unused(std::string_view name) {
  return is_output_projection(name) || is_computed_table(name) || is_kept_untrained(name);
}

/// Does the same for a model, which may declare tensors that it does not read.
static bool may_be_unused(const VisionLanguageModel& model, std::string_view name) {
  return may_be_unused(name) || model.parameters().unread_tensor_names().contains(name);
}

void throw_if_problems(const std::string& headline, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw data_error("{} ({} differences):\n  {}", headline, problems.size(), fmt::join(truncate_list(problems), "\n  "));
}

namespace {

bool is_under_any_module(std::string_view name, const std::vector<std::string>& modules) {
  return std::ranges::any_of(modules, [&](const std::string& module) { return nn::is_under_module(name, module); });
}

LoadTolerance make_load_tolerance(const VisionLanguageModel& model, const LoadSettings& settings) {
  const int64_t vocab_size = model.output_weight().size(0);
  return {.may_be_missing =
              [&settings](std::string_view name) { return is_under_any_module(name, settings.allow_missing); },
          .may_be_unused =
              [&settings, &model](std::string_view name) {
                return may_be_unused(model, name) || is_under_any_module(name, settings.allow_unexpected);
              },
          .may_resize_rows =
              [&settings, vocab_size](const nn::Parameter& parameter) {
                return settings.allow_embedding_resize && parameter.component == nn::Component::kLanguageModel &&
                       parameter.tensor.size(0) == vocab_size;
              },
          .may_be_non_finite = settings.allow_non_finite_values};
}

/// Throws UserError if a tied embedding is stored under the name of the output projection.
/// safetensors' save_model keeps the alphabetically first of two tied tensors, and only nanoVLM
/// names its tensors accordingly.
void reject_swapped_embedding(const nn::Parameter& parameter, const io::CheckpointTensors& weights,
                              const std::filesystem::path& folder) {
  if (!parameter.is_embedding || weights.contains(parameter.name) ||
      parameter.component != nn::Component::kLanguageModel) {
    return;
  }
  const auto output = std::ranges::find_if(weights.names(), is_output_projection);
  if (output == weights.names().end()) return;
  throw data_error("{}: has {} and not {}; if the two are tied, rename it to {}, as transformers does", folder.string(),
                   *output, parameter.name, parameter.name);
}

/// Throws UserError for names that differ systematically. `checkpoint_parameters` have their
/// checkpoint names; `model_parameter_names` are their names in the model.
void check_parameter_names(const std::vector<nn::Parameter>& checkpoint_parameters,
                           const std::vector<std::string>& model_parameter_names, const io::CheckpointTensors& weights,
                           const VisionLanguageModel& model, const std::filesystem::path& folder,
                           const LoadSettings& settings) {
  std::vector<std::string> expected;
  bool may_all_be_missing = true;
  for (const auto& parameter : checkpoint_parameters) {
    expected.push_back(parameter.name);
    may_all_be_missing &=
        weights.contains(parameter.name) || is_under_any_module(parameter.name, settings.allow_missing);
  }
  reject_mismatched_names(folder.string(), expected, model_parameter_names, weights.names(), may_all_be_missing);
  if (!has_tied_output(model)) return;
  for (const auto& parameter : checkpoint_parameters) {
    if (!is_under_any_module(parameter.name, settings.allow_missing))
      reject_swapped_embedding(parameter, weights, folder);
  }
}

/// Throws UserError if the stored output projection of a tied model differs from the embedding.
/// They were equal in build_model(), so the files have changed.
void check_tied_outputs(const std::vector<std::string>& unused_tensor_names, const io::CheckpointTensors& weights,
                        const std::filesystem::path& folder) {
  for (const auto& name : unused_tensor_names) {
    const auto tensors = find_output_tensor_names(weights.names());
    if (!is_output_projection(name) || !tensors || are_output_tensors_equal(*tensors, folder)) continue;
    throw data_error("{}: {} and {} changed while they were read; start again, and do not change the checkpoint",
                     folder.string(), name, tensors->embedding);
  }
}

/// Warns about stored tables that differ from the tables computed from the config. The computed
/// tables are used.
void warn_about_ignored_tables(const std::vector<std::string>& unused_tensor_names,
                               const io::CheckpointTensors& weights, const VisionLanguageModel& model,
                               const std::filesystem::path& folder) {
  io::NamedTensors computed_tables;
  model.add_computed_tables(computed_tables);
  const auto config = read_model_config(folder);
  for (const auto& name : unused_tensor_names) {
    if (!is_computed_table(name)) continue;
    const auto it = std::ranges::find(computed_tables, name, [](const auto& entry) { return entry.first; });
    const at::Tensor table = weights.tensor(name);
    const bool is_equal =
        it != computed_tables.end() ? are_close(table, it->second) : is_default_table(name, table, config);
    if (is_equal) continue;
    spdlog::warn("{}: {} differs from the values computed from config.json; the computed ones are used",
                 folder.string(), name);
  }
}

}  // namespace

void check_host_memory(const VisionLanguageModel& model, const std::filesystem::path& folder,
                       const memory::AvailableHostMemory& available) {
  int64_t bytes = 0;
  for (const auto& parameter : model.parameters().all()) {
    if (!parameter.tensor.is_cpu()) continue;
    const int64_t num_shards = parameter.sharded_block ? model.parameters().shard().count : 1;
    bytes += static_cast<int64_t>(parameter.tensor.nbytes()) / num_shards;
  }
  if (bytes <= available.bytes) return;
  throw UserError(
      ExitCode::kDoesNotFit,
      fmt::format("{}: does not fit in host memory: its weights take {:.2f} GB, and {:.2f} GB are available ({}); "
                  "request more (SLURM's --mem), or compute in 16 bits (bf16)",
                  folder.string(), to_gigabytes(bytes), to_gigabytes(available.bytes), available.limit_source));
}

LoadResult load_weights(VisionLanguageModel& model, const std::filesystem::path& folder, const LoadSettings& settings) {
  const at::NoGradGuard no_gradients;
  std::vector<nn::Parameter> checkpoint_parameters;
  std::map<std::filesystem::path, std::vector<nn::Parameter>> external_parameters;
  std::vector<std::string> model_parameter_names;
  for (nn::Parameter parameter : get_base_parameters(model)) {
    const auto external_weight = model.find_external_weight(parameter.name);
    if (!external_weight) model_parameter_names.push_back(parameter.name);
    parameter.name = external_weight ? external_weight->name : model.get_checkpoint_tensor_name(parameter.name);
    (external_weight ? external_parameters[external_weight->folder] : checkpoint_parameters)
        .push_back(std::move(parameter));
  }
  reject_quantized_weights(read_model_config(folder), folder);
  const io::CheckpointTensors weights(folder);
  check_parameter_names(checkpoint_parameters, model_parameter_names, weights, model, folder, settings);
  for (const auto& warning : list_checkpoint_warnings(folder)) spdlog::warn("{}", warning);
  const auto differences = load_parameters(
      checkpoint_parameters, weights, "", make_load_tolerance(model, settings),
      fmt::format("{}: the weights do not match config.json; to train anyway, set {} (random initialization), {} or {}",
                  folder.string(), keys::model::kAllowMissing, keys::model::kAllowUnexpected,
                  keys::model::kResizeEmbeddings));
  check_tied_outputs(differences.unused_tensor_names, weights, folder);
  warn_about_ignored_tables(differences.unused_tensor_names, weights, model, folder);
  for (const auto& [source, parameters] : external_parameters) {
    load_parameters(parameters, io::CheckpointTensors(source), "",
                    {.may_be_unused = [](std::string_view) { return true; }},
                    fmt::format("{}: the weights do not match {}", source.string(), (folder / "config.json").string()));
  }
  for (const auto& parameter : differences.missing_parameters) initialize_parameter(parameter, settings.seed);
  LoadResult result{differences.missing_parameters, differences.resized_parameters, {}};
  std::ranges::copy_if(differences.unused_tensor_names, std::back_inserter(result.skipped_tensor_names),
                       [&model](const std::string& name) { return !may_be_unused(model, name); });
  return result;
}

}  // namespace vlmtrain::models
