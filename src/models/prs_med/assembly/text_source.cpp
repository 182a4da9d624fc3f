#include "models/prs_med/assembly/text_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "models/checkpoints/load_parameters.h"
#include "models/checkpoints/read_model_config.h"
#include "models/checkpoints/weights.h"
#include "models/llava/config.h"
#include "models/llava/family.h"
#include "models/registry.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models::prs_med {

namespace {

namespace fs = std::filesystem;

/// The model of `folder`, without values.
std::unique_ptr<VisionLanguageModel> build_llava_model(const fs::path& folder) {
  const auto config = read_model_config(folder);
  const auto supported_types = llava::family().model_types;
  const auto types = find_family(config, folder).model_types;
  if (types != supported_types) {
    throw usage_error("--text-model {}: is no LLaVA (model_type {}); one of {} is taken", folder.string(),
                      config.value("model_type", types.empty() ? std::string("none") : std::string(types.front())),
                      fmt::join(supported_types, ", "));
  }
  return build_model(folder, at::kMeta, at::kFloat);
}

}  // namespace

TextSource::TextSource(const fs::path& folder) : model_(build_llava_model(folder)), base_(folder) {
  config_ = io::read_ordered_json(folder / "config.json");
  model_->complete_config(config_);
  check_weights();
}

void TextSource::check_weights() const {
  std::vector<std::string> problems;
  std::set<std::string> expected;
  for (const auto& parameter : get_base_parameters(*model_)) {
    const std::string name = model_->checkpoint_name(parameter.name);
    expected.insert(name);
    const BaseWeights::Entry* const entry = base_.find(parameter);
    if (entry == nullptr) {
      problems.push_back("missing: " + name);
      continue;
    }
    for (std::string problem :
         {describe_dtype_mismatch(name, entry->info.dtype), describe_shape_mismatch(parameter, entry->info.shape)}) {
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
  }
  refuse_differences(fmt::format("{}: the weights do not match config.json", folder().string()), problems);
  std::vector<std::string> unexpected = io::read_checkpoint_tensor_names(folder());
  std::erase_if(unexpected, [&](const std::string& name) { return expected.contains(name) || may_be_unused(name); });
  if (unexpected.empty()) return;
  const size_t count = unexpected.size();
  spdlog::warn("{}: {} tensors are of no use in a LLaVA and are left out: {}", folder().string(), count,
               fmt::join(truncate_list(std::move(unexpected)), ", "));
}

nlohmann::ordered_json::json_pointer TextSource::vocab_size_key() const {
  const bool is_top_level = llava::Config::from_json(config_, folder()).layout == llava::Layout::kOriginal;
  return nlohmann::ordered_json::json_pointer(is_top_level ? "/vocab_size" : "/text_config/vocab_size");
}

std::map<std::string, std::string> TextSource::auxiliary_files() const {
  auto files = base_.files();
  files.erase("config.json");
  return files;
}

std::optional<io::LazyTensor> TextSource::weight(const nn::Parameter& parameter) const {
  const BaseWeights::Entry* const entry = base_.find(parameter);
  if (entry == nullptr) return std::nullopt;
  const bool has_all_rows = parameter.sizes() == at::IntArrayRef(entry->info.shape);
  return io::LazyTensor{
      .name = model_->checkpoint_name(parameter.name),
      .dtype = entry->info.dtype,
      .shape = parameter.sizes().vec(),
      .materialize = [parameter, read = entry->read,
                      has_all_rows] { return has_all_rows ? read() : resize_rows(parameter, read()); },
      .on_written = entry->release};
}

}  // namespace vlmtrain::models::prs_med
