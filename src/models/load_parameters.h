#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// The first of many, and a sign that there are more.
std::vector<std::string> shortened(std::vector<std::string> items);

/// How a tensor's shape is not the parameter's; empty where it is.
std::string shape_problem(const nn::Parameter& parameter, at::IntArrayRef shape);

/// Throws UserError (kBadData) with the problems, if there are any, after `headline`.
void refuse_differences(const std::string& headline, const std::vector<std::string>& problems);

/// Copies tensors of a file (io::CheckpointTensors or io::SafetensorsFile) to parameters, whose names there begin with
/// `prefix`. Strict: what is missing, of another shape, or unexpected is refused, unless `may_be_unused` says so. One
/// tensor after the other: host memory does not hold the file.
template <class Tensors>
void load_parameters(const std::vector<nn::Parameter>& parameters, const Tensors& file, std::string_view prefix,
                     bool (*may_be_unused)(std::string_view), const std::string& headline) {
  std::vector<std::string> problems;
  std::unordered_set<std::string> wanted;
  for (const auto& parameter : parameters) {
    const std::string name = std::string(prefix) + parameter.name;
    wanted.insert(name);
    if (!file.contains(name)) {
      problems.push_back("missing: " + name);
    } else if (auto problem = shape_problem(parameter, file.info(name).shape); !problem.empty()) {
      problems.push_back(std::move(problem));
    }
  }
  for (const auto& name : file.names()) {
    if (!wanted.contains(name) && !may_be_unused(name)) problems.push_back("unexpected: " + name);
  }
  refuse_differences(headline, problems);
  for (const auto& parameter : parameters) {
    const std::string name = std::string(prefix) + parameter.name;
    parameter.tensor.detach().copy_(file.tensor(name));
    file.release(name);
  }
}

}  // namespace vlmtrain::models
