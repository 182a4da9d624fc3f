#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

class VisionLanguageModel;  // vlmtrain/models/model.h

/// Returns the first non-finite value and its index, such as "nan at [3, 5]"; empty if all values
/// are finite. Quantized and integer tensors are always finite. Tensors on the meta device count as
/// finite, here and below.
std::string describe_first_non_finite_value(const at::Tensor& values);

/// Returns whether a finite value becomes infinite in `dtype`.
bool overflows(const at::Tensor& values, at::ScalarType dtype);

/// Returns a sentence about the tensor `name` and its first value that overflows; empty if
/// overflows() is false.
std::string describe_overflow(std::string_view name, const at::Tensor& values, at::ScalarType dtype);

/// Returns the first 20 items, and "…" if there are more.
std::vector<std::string> truncate_list(std::vector<std::string> items);

/// Describes the difference between `shape` and the parameter's shape; empty if they are equal.
std::string describe_shape_mismatch(const nn::Parameter& parameter, at::IntArrayRef shape);

/// Returns "missing: NAME", with a hint for an output projection.
std::string describe_missing_tensor(const std::string& name);

/// Describes the problem if a tensor `name` of `dtype` cannot be a parameter's values; else returns
/// an empty string. F64, F32, BF16 and F16 are allowed. Integers and 8-bit types would be quantized
/// values without their scales.
std::string describe_unsupported_dtype(std::string_view name, at::ScalarType dtype);

/// Returns whether a parameter and `shape` are matrices that differ only in the number of rows.
bool differs_only_in_rows(const nn::Parameter& parameter, at::IntArrayRef shape);

/// Throws UserError (kBadData) with `headline`, "FILE: what is wrong", and the problems, one per
/// line. Does nothing without problems.
void throw_if_problems(const std::string& headline, const std::vector<std::string>& problems);

/// Permitted differences between a file and the parameters. Null functions permit nothing.
struct LoadTolerance {
  std::function<bool(std::string_view name)> may_be_missing = nullptr;
  std::function<bool(std::string_view name)> may_be_unused = nullptr;
  std::function<bool(const nn::Parameter& parameter)> may_resize_rows = nullptr;
  bool may_be_non_finite = false;  ///< allows infinite values and NaN
};

/// The differences that load_parameters() found and permitted.
struct LoadDifferences {
  std::vector<nn::Parameter> missing_parameters;  ///< without a tensor in the file; their values are unchanged
  std::vector<nn::Parameter> resized_parameters;  ///< loaded with another number of rows
  std::vector<std::string> unused_tensor_names;   ///< tensors of the file without a parameter
};

/// Copies a table [rows, columns] to a parameter with another number of rows. Surplus rows are
/// dropped. New rows are the mean of all rows of the table (Hewitt 2021,
/// https://nlp.stanford.edu/~johnhew/vocab-expansion.html).
void copy_rows_to_parameter(const nn::Parameter& parameter, const at::Tensor& table);

/// Returns the table resized as in copy_rows_to_parameter(), in the table's dtype.
at::Tensor resize_table_rows(const nn::Parameter& parameter, const at::Tensor& table);

/// Throws UserError (kBadData) if values of the tensor `name` are not finite or overflow in the
/// parameter's dtype. Non-finite values only cause a warning in an embedding, since its rows may be
/// unused, or with `may_be_non_finite`. The part of `headline` before ": " names the file.
void check_loaded_values(const nn::Parameter& parameter, std::string_view name, const at::Tensor& values,
                         bool may_be_non_finite, const std::string& headline);

/// Returns whether a tensor of this name is a table that is computed from the config: RoPE
/// frequencies or position ids.
bool is_computed_table(std::string_view name);

/// Returns whether a tensor belongs to a module that is not built, but kept in saved checkpoints:
/// multi-token prediction (`mtp.`; Gloeckle et al. 2024, arXiv 2404.19737), which inference engines
/// use for speculative decoding, and Gemma 4's audio.
bool is_kept_untrained(std::string_view name);

/// Returns whether a checkpoint may have a tensor of this name without a parameter for it: a copy
/// of a tied output projection, a computed table, or a tensor for which is_kept_untrained().
bool may_be_unused(std::string_view name);

/// Copies the tensors of a file (io::CheckpointTensors or io::SafetensorsFile), whose names begin
/// with `prefix`, to parameters, one at a time. Throws UserError (kBadData), which begins with
/// `headline`, for missing and unexpected tensors, mismatches of shape and dtype, and values that
/// are not finite, unless `tolerance` allows them. Some parameters are overwritten then.
template <class Tensors>
LoadDifferences load_parameters(const std::vector<nn::Parameter>& parameters, const Tensors& file,
                                std::string_view prefix, const LoadTolerance& tolerance, const std::string& headline) {
  LoadDifferences differences;
  std::vector<const nn::Parameter*> matched_parameters;
  std::vector<std::string> problems;
  std::unordered_set<std::string> expected;
  for (const auto& parameter : parameters) {
    const std::string name = std::string(prefix) + parameter.name;
    expected.insert(name);
    if (!file.contains(name)) {
      if (tolerance.may_be_missing && tolerance.may_be_missing(name)) {
        differences.missing_parameters.push_back(parameter);
      } else {
        problems.push_back(describe_missing_tensor(name));
      }
      continue;
    }
    matched_parameters.push_back(&parameter);
    const auto& info = file.info(name);
    if (auto problem = describe_unsupported_dtype(name, info.dtype); !problem.empty())
      problems.push_back(std::move(problem));
    if (auto problem = describe_shape_mismatch(parameter, info.shape); !problem.empty()) {
      if (differs_only_in_rows(parameter, info.shape) && tolerance.may_resize_rows &&
          tolerance.may_resize_rows(parameter)) {
        differences.resized_parameters.push_back(parameter);
      } else {
        problems.push_back(std::move(problem));
      }
    }
  }
  for (const auto& name : file.names()) {
    if (expected.contains(name)) continue;
    if (tolerance.may_be_unused && tolerance.may_be_unused(name)) {
      differences.unused_tensor_names.push_back(name);
    } else {
      problems.push_back("unexpected: " + name);
    }
  }
  throw_if_problems(headline, problems);
  for (const nn::Parameter* parameter : matched_parameters) {
    const std::string name = std::string(prefix) + parameter->name;
    const at::Tensor values = file.tensor(name);
    check_loaded_values(*parameter, name, values, tolerance.may_be_non_finite, headline);
    if (parameter->sizes() == values.sizes()) {
      parameter->set_values(values);
    } else {
      copy_rows_to_parameter(*parameter, values);
    }
    file.release(name);
  }
  return differences;
}

/// Returns the parameters that a checkpoint stores: all except LoRA adapters.
std::vector<nn::Parameter> get_base_parameters(const VisionLanguageModel& model);

/// Returns the checkpoint names and the detached tensors of get_base_parameters(), without copying.
io::NamedTensors get_named_weights(const VisionLanguageModel& model);

/// Returns a parameter's initial values, fp32 on the host. They depend only on `seed` and the
/// parameter's name. The parameter may be on the meta device.
at::Tensor make_initial_values(const nn::Parameter& parameter, uint64_t seed);

/// Adds the weights of initialize_weights(), rounded to `dtype`, to the files of a preset in
/// `folder`, and sets the dtype in its config.json. Memory holds one tensor at a time.
void write_initial_weights(const std::filesystem::path& folder, uint64_t seed, at::ScalarType dtype);

/// Sets a parameter to its initial values.
void initialize_parameter(const nn::Parameter& parameter, uint64_t seed);

/// Throws UserError (kDoesNotFit) if the weights of a model on the CPU exceed `available`. Call it
/// before the weights are loaded: their memory need not be touched yet. For commands without a
/// memory plan, such as evaluation and generation. `folder` names the model in errors.
void check_host_memory(const VisionLanguageModel& model, const std::filesystem::path& folder,
                       const memory::AvailableHostMemory& available);

}  // namespace vlmtrain::models
