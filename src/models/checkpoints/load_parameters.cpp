#include "models/checkpoints/load_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/dtype_name.h"

namespace vlmtrain::models {

namespace {

constexpr std::string_view kTiedOutputs[] = {"lm_head.weight", "decoder.head.weight"};
constexpr std::string_view kTables[] = {".rotary_emb.inv_freq", ".rotary_embd.inv_freq", ".embeddings.position_ids"};

std::string shape_text(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

}  // namespace

std::vector<std::string> shortened(std::vector<std::string> items) {
  constexpr size_t kMost = 20;
  if (items.size() > kMost) {
    items.resize(kMost);
    items.emplace_back("…");
  }
  return items;
}

std::string shape_problem(const nn::Parameter& parameter, at::IntArrayRef shape) {
  if (parameter.sizes() == shape) return "";
  return fmt::format("{} has shape {}, the config asks for {}", parameter.name, shape_text(shape),
                     shape_text(parameter.sizes()));
}

std::string dtype_problem(std::string_view name, at::ScalarType dtype) {
  if (c10::isFloatingType(dtype)) return "";
  return fmt::format("{} has dtype {}, which holds no weights; take a checkpoint in F32, BF16 or F16", name,
                     io::dtype_name(dtype));
}

bool differ_in_rows(const nn::Parameter& parameter, at::IntArrayRef shape) {
  const auto sizes = parameter.sizes();
  return sizes.size() == 2 && shape.size() == 2 && sizes[1] == shape[1] && shape[0] > 0;
}

void copy_rows(const nn::Parameter& parameter, const at::Tensor& table) {
  const at::Tensor rows = parameter.tensor.detach();
  const int64_t kept = std::min(rows.size(0), table.size(0));
  rows.narrow(0, 0, kept).copy_(table.narrow(0, 0, kept));
  if (kept < rows.size(0)) rows.narrow(0, kept, rows.size(0) - kept).copy_(table.mean(0, /*keepdim=*/true, at::kFloat));
}

at::Tensor with_rows_of(const nn::Parameter& parameter, const at::Tensor& table) {
  const at::NoGradGuard no_gradients;
  nn::Parameter rows = parameter;
  rows.tensor = at::empty(parameter.sizes(), table.options());
  copy_rows(rows, table);
  return rows.tensor;
}

bool may_be_unused(std::string_view name) {
  const auto ends_name = [name](std::string_view end) { return name.ends_with(end); };
  return std::ranges::any_of(kTiedOutputs, ends_name) || std::ranges::any_of(kTables, ends_name);
}

void refuse_differences(const std::string& headline, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw data_error("{} ({} differences):\n  {}", headline, problems.size(), fmt::join(shortened(problems), "\n  "));
}

}  // namespace vlmtrain::models
