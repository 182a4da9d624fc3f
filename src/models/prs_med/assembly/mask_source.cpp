#include "models/prs_med/assembly/mask_source.h"

#include <fmt/ranges.h>

#include <set>
#include <utility>

#include "models/checkpoints/load_parameters.h"
#include "models/prs_med/assembly/mask_sizes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain::models::prs_med {

namespace {

constexpr std::string_view kMaskModel = "mask_model.";

TensorSourceWords words_of_masks() {
  return {.is_none =
              "is no mask model; give a folder with transformers' SamModel, or a .pt, .pth or .safetensors file of SAM "
              "or MobileSAM",
          .give_one = "give the file of SAM or MobileSAM itself"};
}

}  // namespace

MaskSource::MaskSource(const std::filesystem::path& place)
    : tensors_(place, words_of_masks()), layout_(layout_of(tensors_)) {}

nlohmann::ordered_json MaskSource::config(nlohmann::ordered_json preset) const {
  preset.update(mask_sizes(tensors_, layout_, preset.value("image_size", int64_t{1024})));
  return preset;
}

std::optional<std::string> MaskSource::name_here(const nn::Parameter& parameter) const {
  if (!parameter.name.starts_with(kMaskModel)) return std::nullopt;
  return spelled(layout_, parameter.name.substr(kMaskModel.size()));
}

void MaskSource::check(const std::vector<nn::Parameter>& parameters) const {
  std::vector<std::string> problems;
  std::set<std::string> wanted;
  for (nn::Parameter parameter : parameters) {
    const auto name = name_here(parameter);
    if (!name) continue;
    wanted.insert(*name);
    parameter.name = *name;  // messages are of the file
    const StoredTensor* const tensor = tensors_.find(*name);
    if (tensor == nullptr) {
      problems.push_back("missing: " + *name);
      continue;
    }
    for (std::string problem : {dtype_problem(*name, tensor->dtype), shape_problem(parameter, tensor->shape)}) {
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
  }
  refuse_differences(fmt::format("{}: is no whole mask model in the layout of {}; fetch it again",
                                 tensors_.place().string(), layout()),
                     problems);
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : tensors_.all()) {
    if (!wanted.contains(name) && !is_not_run(name)) unexpected.push_back(name);
  }
  if (unexpected.empty()) return;
  const size_t count = unexpected.size();
  spdlog::warn("{}: {} tensors are of no use in a mask model and are left out: {}", tensors_.place().string(), count,
               fmt::join(shortened(std::move(unexpected)), ", "));
}

std::optional<io::LazyTensor> MaskSource::weight(const nn::Parameter& parameter) const {
  const auto name = name_here(parameter);
  if (!name) return std::nullopt;
  const StoredTensor* const tensor = tensors_.find(*name);
  VLMTRAIN_CHECK(tensor != nullptr, "{} has no {}", tensors_.place().string(), *name);
  return io::LazyTensor{.name = parameter.name,
                        .dtype = tensor->dtype,
                        .shape = tensor->shape,
                        .make = tensor->read,
                        .written = tensor->release};
}

}  // namespace vlmtrain::models::prs_med
