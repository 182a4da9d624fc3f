#include "models/brain_llava/assembly/language_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "models/checkpoints/companion_files.h"
#include "models/checkpoints/load_parameters.h"
#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/read_model_config.h"
#include "models/checkpoints/tied_output.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::brain_llava {

namespace {

using nlohmann::ordered_json;

constexpr std::string_view kModel = "language_model.model.", kOutput = "language_model.lm_head.";
constexpr std::array<std::string_view, 3> kKnownModels{"language_model.model.", "model.language_model.", "model."};
constexpr std::array<std::string_view, 2> kKnownOutputs{"language_model.lm_head.", "lm_head."};

/// Of LLaVA's own layout, whose text model's keys stand at the top of its config.json.
const std::map<std::string, std::string>& text_types() {
  static const std::map<std::string, std::string> types{{"llama", "llama"},       {"mistral", "mistral"},
                                                        {"qwen2", "qwen2"},       {"llava", "llama"},
                                                        {"llava_llama", "llama"}, {"llava_mistral", "mistral"}};
  return types;
}

/// Keys beside the text model's.
bool is_of_pictures(const std::string& key) {
  constexpr std::array<std::string_view, 6> kBeginnings{"mm_", "image_", "tune_", "freeze_", "use_mm_", "tokenizer_"};
  constexpr std::array<std::string_view, 5> kKeys{"architectures", "auto_map", "vision_config", "torch_dtype", "dtype"};
  return std::ranges::any_of(kBeginnings, [&](auto beginning) { return key.starts_with(beginning); }) ||
         std::ranges::find(kKeys, key) != kKeys.end();
}

/// Where the files hold an output projection of its own, the text model has one, whatever its config says.
void follow_weights(ordered_json& text, const std::filesystem::path& folder) {
  if (!text.value("tie_word_embeddings", false)) return;
  const auto tensors = find_output_tensors(io::checkpoint_tensor_names(folder));
  if (!tensors || are_equal(*tensors, folder)) return;
  spdlog::warn("{}: config.json ties {} to {} (tie_word_embeddings), but their values differ; both are taken",
               folder.string(), tensors->output, tensors->embedding);
  text["tie_word_embeddings"] = false;
}

ordered_json text_config_in(const std::filesystem::path& folder) {
  // Says what the folder is where it is no checkpoint.
  refuse_quantized_weights(read_model_config(folder), folder);
  const std::string file = (folder / "config.json").string();
  const auto config = io::read_ordered_json(folder / "config.json");
  const auto type = io::get_or<std::string>(config, "model_type", "", file);
  const auto known = text_types().find(type);
  if (known == text_types().end()) {
    throw usage_error("--text-model {}: model_type {} is not taken; a LLaVA, Llama, Mistral or Qwen2 is",
                      folder.string(), type.empty() ? "none" : type);
  }
  if (const auto section = config.find("text_config"); section != config.end() && section->is_object()) {
    ordered_json text = *section;
    if (!text.contains("model_type")) text["model_type"] = "llama";
    if (config.value("tie_word_embeddings", false)) text["tie_word_embeddings"] = true;
    text.erase("quantization_config");
    follow_weights(text, folder);
    return text;
  }
  ordered_json text = ordered_json::object();
  for (const auto& [key, value] : config.items()) {
    if (!is_of_pictures(key)) text[key] = value;
  }
  text["model_type"] = known->second;
  text.erase("quantization_config");
  follow_weights(text, folder);
  return text;
}

TensorSourceWords words_of_texts() {
  return {.is_none = "is no folder of a text model; give one with config.json, tokenizer.json and *.safetensors",
          .give_one = "give the folder of a checkpoint"};
}

}  // namespace

LanguageSource::LanguageSource(const std::filesystem::path& folder)
    : config_(text_config_in(folder)),
      tensors_(folder, words_of_texts()),
      text_(LlamaConfig::from_json(nlohmann::json(config_), (folder / "config.json").string())) {
  for (const auto beginning : kKnownModels) {
    if (tensors_.find(std::string(beginning) + "embed_tokens.weight") == nullptr) continue;
    model_ = beginning;
    break;
  }
  if (model_.empty()) {
    throw data_error("{}: has no tensor model.embed_tokens.weight, or the same below language_model", folder.string());
  }
  for (const auto beginning : kKnownOutputs) {
    if (tensors_.has_any(beginning)) output_ = beginning;
  }
}

std::map<std::string, std::string> LanguageSource::companion_files() const {
  auto files = read_companion_files(folder());
  for (const char* of_pictures : {"preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json",
                                  "image_processor_config.json"}) {
    files.erase(of_pictures);
  }
  return files;
}

at::ScalarType LanguageSource::dtype() const {
  return tensors_.find(model_ + "embed_tokens.weight")->dtype;
}

std::optional<std::string> LanguageSource::name_here(const nn::Parameter& parameter) const {
  if (parameter.name.starts_with(kModel)) return model_ + parameter.name.substr(kModel.size());
  if (parameter.name.starts_with(kOutput)) return output_ + parameter.name.substr(kOutput.size());
  return std::nullopt;
}

void LanguageSource::check(const std::vector<nn::Parameter>& parameters) const {
  std::vector<std::string> problems;
  for (nn::Parameter parameter : parameters) {
    const auto name = name_here(parameter);
    if (!name) continue;
    parameter.name = *name;  // messages are of the file
    const StoredTensor* const tensor = tensors_.find(*name);
    if (tensor == nullptr) {
      problems.push_back("missing: " + *name);
      continue;
    }
    if (auto problem = dtype_problem(*name, tensor->dtype); !problem.empty()) problems.push_back(std::move(problem));
    const bool is_table = name->ends_with("embed_tokens.weight") || name->ends_with("lm_head.weight");
    if (is_table && differ_in_rows(parameter, tensor->shape)) continue;
    if (auto problem = shape_problem(parameter, tensor->shape); !problem.empty())
      problems.push_back(std::move(problem));
  }
  refuse_differences(fmt::format("{}: the weights do not match config.json", folder().string()), problems);
}

std::optional<io::LazyTensor> LanguageSource::weight(const nn::Parameter& parameter) const {
  const auto name = name_here(parameter);
  const StoredTensor* const tensor = name ? tensors_.find(*name) : nullptr;
  if (tensor == nullptr) return std::nullopt;
  const bool has_all_rows = parameter.sizes() == at::IntArrayRef(tensor->shape);
  return io::LazyTensor{.name = parameter.name,
                        .dtype = tensor->dtype,
                        .shape = parameter.sizes().vec(),
                        .make = [parameter, read = tensor->read,
                                 has_all_rows] { return has_all_rows ? read() : with_rows_of(parameter, read()); },
                        .written = tensor->release};
}

}  // namespace vlmtrain::models::brain_llava
