#include "vlmtrain/models/assemble.h"

#include <fmt/ranges.h>

#include <optional>
#include <set>

#include "models/checkpoints/new_folder.h"
#include "models/checkpoints/weights.h"
#include "models/presets.h"
#include "models/processing/conversation_processor.h"
#include "models/prs_med/assembly/mask_source.h"
#include "models/prs_med/assembly/text_source.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/text/add_token.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using prs_med::MaskSource;
using prs_med::TextSource;

constexpr int64_t kRowsAtOnce = 64;  // by which a vocabulary grows: matrices stay aligned

std::string mask_token_of(const ordered_json& masks) {
  return io::get<std::string>(masks, "mask_token", "mask_config");
}

void write_config(const fs::path& folder, const ordered_json& config) {
  io::write_file(folder / "config.json", io::json_text(config, 2) + "\n");
}

/// The text model's tokenizer.json, or the one that is given in its stead.
fs::path tokenizer_for(const TextSource& text, const fs::path& given) {
  fs::path own = text.folder() / "tokenizer.json";
  if (given.empty()) {
    load_tokenizer(text.folder());  // says what to do where there is none
    return own;
  }
  if (fs::exists(own)) throw usage_error("--tokenizer: {} has its own; leave it out", text.folder().string());
  return given;
}

/// The text model's files in `folder`, with the mask token in tokenizer and vocabulary.
void write_files_of(const TextSource& text, const ordered_json& masks, const fs::path& given_tokenizer,
                    const fs::path& folder) {
  const fs::path tokenizer = tokenizer_for(text, given_tokenizer);
  const auto added = text::with_token(io::read_file(tokenizer), mask_token_of(masks), tokenizer.string());
  for (const auto& [name, content] : text.companion_files()) io::write_file(folder / name, content);
  io::write_file(folder / "tokenizer.json", added.json);

  ordered_json config = text.config();
  config["architectures"] = {"PrsMedForConditionalGeneration"};
  config["base_model_type"] = config["model_type"];
  config["model_type"] = "prs_med";
  config["mask_config"] = masks;
  const int64_t grown = (added.id + kRowsAtOnce) / kRowsAtOnce * kRowsAtOnce;
  if (added.id >= text.vocabulary()) {
    config[text.vocabulary_key()] = grown;
    spdlog::info("vocabulary: {} rows become {}; the new ones are the mean of the others", text.vocabulary(), grown);
  }
  write_config(folder, config);
}

/// The preset's, with `masks`.
void write_files_of(const AssemblyParts& parts, const ordered_json& masks, const fs::path& folder) {
  write_preset_files(parts.preset, parts.tokenizer, folder);
  auto config = io::read_ordered_json(folder / "config.json");
  config["mask_config"] = masks;
  config[config.contains("torch_dtype") ? "torch_dtype" : "dtype"] = "float32";
  write_config(folder, config);
}

class Writer {
 public:
  Writer(const std::optional<TextSource>& text, const std::optional<MaskSource>& masks, uint64_t seed)
      : text_(text), masks_(masks), seed_(seed) {}

  /// The weights of the model in `folder`, into it.
  Assembly write(const VisionLanguageModel& model, const fs::path& folder) {
    const auto parameters = own_parameters(model);
    if (masks_) masks_->check(parameters);
    io::LazyTensors weights;
    for (const auto& parameter : parameters) weights.push_back(weight_of(model, parameter));
    io::NamedTensors tables;
    model.complete_weights(tables);
    for (auto& table : io::lazily(tables)) weights.push_back(std::move(table));
    int64_t bytes = 0;
    for (const auto& weight : weights) bytes += weight.bytes();
    if (text_) spdlog::info("text model: {} tensors of {}", made_.from_text_model, text_->folder().string());
    if (masks_) {
      spdlog::info("mask model: {} tensors of {}, in the layout of {}", made_.from_mask_model, masks_->place().string(),
                   masks_->layout());
    }
    spdlog::info("at random: {} tensors ({}), from seed {}; writing {}", made_.at_random,
                 fmt::join(modules_at_random_, ", "), seed_, format_bytes(bytes));
    io::write_checkpoint_tensors(folder, weights, io::kDefaultShardBytes);
    made_.vocabulary = model.output_weight().size(0);
    return made_;
  }

 private:
  io::LazyTensor weight_of(const VisionLanguageModel& model, const nn::Parameter& parameter) {
    if (auto weight = masks_ ? masks_->weight(parameter) : std::nullopt) {
      ++made_.from_mask_model;
      return *std::move(weight);
    }
    if (auto weight = text_ ? text_->weight(parameter) : std::nullopt) {
      ++made_.from_text_model;
      return *std::move(weight);
    }
    ++made_.at_random;
    modules_at_random_.insert(parameter.name.substr(0, parameter.name.find('.')));
    const at::ScalarType dtype = text_ ? text_->dtype() : at::kFloat;
    return {.name = model.checkpoint_name(parameter.name),
            .dtype = dtype,
            .shape = parameter.sizes().vec(),
            .make = [parameter, dtype, seed = seed_] { return initial_values(parameter, seed).to(dtype); }};
  }

  const std::optional<TextSource>& text_;
  const std::optional<MaskSource>& masks_;
  uint64_t seed_;
  Assembly made_;
  std::set<std::string> modules_at_random_;
};

}  // namespace

Assembly assemble(const AssemblyParts& parts, const fs::path& out) {
  ordered_json masks = mask_config_of_preset(parts.preset);
  std::optional<TextSource> text;
  if (!parts.text_model.empty()) text.emplace(parts.text_model);
  std::optional<MaskSource> source;
  if (!parts.mask_model.empty()) {
    source.emplace(parts.mask_model);
    masks = source->config(std::move(masks));
  }
  prepare_new_folder(out);
  io::AtomicDirectory folder(out);
  if (text) {
    write_files_of(*text, masks, parts.tokenizer, folder.path());
  } else {
    write_files_of(parts, masks, folder.path());
  }
  const std::string token = mask_token_of(masks);
  const auto token_id = load_processor(folder.path(), {})->tokenizer().token_to_id(token);
  VLMTRAIN_CHECK(token_id, "{} is not in the tokenizer", token);
  const auto model = build_model(folder.path(), at::kMeta, at::kFloat);
  Assembly made = Writer(text, source, parts.seed).write(*model, folder.path());
  made.mask_token_id = *token_id;
  folder.commit();
  return made;
}

}  // namespace vlmtrain::models
