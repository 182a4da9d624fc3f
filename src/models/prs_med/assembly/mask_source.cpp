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

constexpr std::string_view kMaskModelPrefix = "mask_model.";

TensorSourceMessages make_mask_messages() {
  return {.not_found =
              "is no mask model; give a folder with transformers' SamModel, or a .pt, .pth or .safetensors file of SAM "
              "or MobileSAM",
          .choose_file = "give the file of SAM or MobileSAM itself"};
}

}  // namespace

MaskSource::MaskSource(const std::filesystem::path& path)
    : tensors_(path, make_mask_messages()), layout_(detect_layout(tensors_)) {}

nlohmann::ordered_json MaskSource::config(nlohmann::ordered_json preset) const {
  preset.update(read_mask_sizes(tensors_, layout_, preset.value("image_size", int64_t{1024})));
  return preset;
}

std::optional<std::string> MaskSource::find_stored_name(const nn::Parameter& parameter) const {
  if (!parameter.name.starts_with(kMaskModelPrefix)) return std::nullopt;
  return to_checkpoint_key(layout_, parameter.name.substr(kMaskModelPrefix.size()));
}

void MaskSource::check(const std::vector<nn::Parameter>& parameters) const {
  std::vector<std::string> problems;
  std::set<std::string> expected;
  for (nn::Parameter parameter : parameters) {
    const auto name = find_stored_name(parameter);
    if (!name) continue;
    expected.insert(*name);
    parameter.name = *name;  // messages are of the file
    const StoredTensor* const tensor = tensors_.find(*name);
    if (tensor == nullptr) {
      problems.push_back("missing: " + *name);
      continue;
    }
    for (std::string problem :
         {describe_dtype_mismatch(*name, tensor->dtype), describe_shape_mismatch(parameter, tensor->shape)}) {
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
  }
  refuse_differences(
      fmt::format("{}: is no whole mask model in the layout of {}; fetch it again", tensors_.path().string(), layout()),
      problems);
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : tensors_.all()) {
    if (!expected.contains(name) && !is_unused(name)) unexpected.push_back(name);
  }
  if (unexpected.empty()) return;
  const size_t count = unexpected.size();
  spdlog::warn("{}: {} tensors are of no use in a mask model and are left out: {}", tensors_.path().string(), count,
               fmt::join(truncate_list(std::move(unexpected)), ", "));
}

std::optional<io::LazyTensor> MaskSource::weight(const nn::Parameter& parameter) const {
  const auto name = find_stored_name(parameter);
  if (!name) return std::nullopt;
  const StoredTensor* const tensor = tensors_.find(*name);
  VLMTRAIN_CHECK(tensor != nullptr, "{} has no {}", tensors_.path().string(), *name);
  return io::LazyTensor{.name = parameter.name,
                        .dtype = tensor->dtype,
                        .shape = tensor->shape,
                        .materialize = tensor->read,
                        .on_written = tensor->release};
}

}  // namespace vlmtrain::models::prs_med
