#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// The first of many, and a sign that there are more.
std::vector<std::string> truncate_list(std::vector<std::string> items);

/// How a tensor's shape is not the parameter's; empty where it is.
std::string describe_shape_mismatch(const nn::Parameter& parameter, at::IntArrayRef shape);

/// "missing: NAME", and for an output projection what makes the embedding of it.
std::string describe_missing(const std::string& name);

/// Empty where a tensor of the type can be a parameter's values: F64, F32, BF16, F16. What some program quantized to,
/// integers or 8-bit numbers with scales of their own, would be taken for the weights themselves.
std::string describe_dtype_mismatch(std::string_view name, at::ScalarType dtype);

/// Whether two matrices differ in nothing but the number of rows.
bool differs_only_in_rows(const nn::Parameter& parameter, at::IntArrayRef shape);

/// Throws UserError (kBadData) with the problems, if there are any, after `headline`.
void refuse_differences(const std::string& headline, const std::vector<std::string>& problems);

/// In what a file may differ from the parameters. What is not set is refused.
struct LoadTolerance {
  std::function<bool(std::string_view name)> may_be_missing = nullptr;
  std::function<bool(std::string_view name)> may_be_unused = nullptr;
  std::function<bool(const nn::Parameter& parameter)> may_resize_rows = nullptr;
  bool may_be_non_finite = false;  ///< values may be infinite or not numbers
};

/// In what it does, as far as that was allowed.
struct LoadDifferences {
  std::vector<nn::Parameter> missing;  ///< left as they were
  std::vector<nn::Parameter> resized;
  std::vector<std::string> unused;
};

/// Copies a table [rows, columns] to a parameter of other rows: the first as they are, further ones as the mean of all
/// (Hewitt 2021, https://nlp.stanford.edu/~johnhew/vocab-expansion.html).
void copy_rows(const nn::Parameter& parameter, const at::Tensor& table);

/// What copy_rows makes of the table, in the table's type.
at::Tensor resize_rows(const nn::Parameter& parameter, const at::Tensor& table);

/// Throws UserError (kBadData) where values of the tensor `name` are not finite, or become infinite in the parameter's
/// type. Of an embedding, whose rows may never be used, or where `may_be_non_finite`, the first is a warning.
void check_values(const nn::Parameter& parameter, std::string_view name, const at::Tensor& values,
                  bool may_be_non_finite, const std::string& headline);

/// Whether a tensor of the name is a table that the config determines: rotary frequencies, numbers of positions.
bool is_computed_table(std::string_view name);

/// Whether a checkpoint may have the tensor although no parameter is called so: some with tied embeddings carry the
/// output projection once more, and older ones carry tables that are computed.
bool may_be_unused(std::string_view name);

/// Copies tensors of a file (io::CheckpointTensors or io::SafetensorsFile) to parameters, whose names there begin with
/// `prefix`. Strict: what is missing, of another shape, no floating-point numbers, or unexpected is refused after
/// `headline`, unless `tolerance` allows it. One tensor after the other: host memory does not hold the file.
template <class Tensors>
LoadDifferences load_parameters(const std::vector<nn::Parameter>& parameters, const Tensors& file,
                                std::string_view prefix, const LoadTolerance& tolerance, const std::string& headline) {
  LoadDifferences differences;
  std::vector<const nn::Parameter*> matched;
  std::vector<std::string> problems;
  std::unordered_set<std::string> expected;
  for (const auto& parameter : parameters) {
    const std::string name = std::string(prefix) + parameter.name;
    expected.insert(name);
    if (!file.contains(name)) {
      if (tolerance.may_be_missing && tolerance.may_be_missing(name)) {
        differences.missing.push_back(parameter);
      } else {
        problems.push_back(describe_missing(name));
      }
      continue;
    }
    matched.push_back(&parameter);
    const auto& info = file.info(name);
    if (auto problem = describe_dtype_mismatch(name, info.dtype); !problem.empty())
      problems.push_back(std::move(problem));
    if (auto problem = describe_shape_mismatch(parameter, info.shape); !problem.empty()) {
      if (differs_only_in_rows(parameter, info.shape) && tolerance.may_resize_rows &&
          tolerance.may_resize_rows(parameter)) {
        differences.resized.push_back(parameter);
      } else {
        problems.push_back(std::move(problem));
      }
    }
  }
  for (const auto& name : file.names()) {
    if (expected.contains(name)) continue;
    if (tolerance.may_be_unused && tolerance.may_be_unused(name)) {
      differences.unused.push_back(name);
    } else {
      problems.push_back("unexpected: " + name);
    }
  }
  refuse_differences(headline, problems);
  for (const nn::Parameter* parameter : matched) {
    const std::string name = std::string(prefix) + parameter->name;
    const at::Tensor values = file.tensor(name);
    check_values(*parameter, name, values, tolerance.may_be_non_finite, headline);
    if (parameter->sizes() == values.sizes()) {
      parameter->set_values(values);
    } else {
      copy_rows(*parameter, values);
    }
    file.release(name);
  }
  return differences;
}

}  // namespace vlmtrain::models
