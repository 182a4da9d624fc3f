#include "models/prs_med/assembly/assemble.h"

#include <fmt/ranges.h>

#include <optional>
#include <vector>

#include "models/checkpoints/new_folder.h"
#include "models/checkpoints/weights.h"
#include "models/checkpoints/weights_of_parts.h"
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

namespace vlmtrain::models::prs_med {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

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

/// The weights of the model in `folder`, into it.
Assembly write_weights(const VisionLanguageModel& model, const std::optional<TextSource>& text,
                       const std::optional<MaskSource>& masks, uint64_t seed, const fs::path& folder) {
  if (masks) masks->check(own_parameters(model));
  const std::vector<PartWeight> parts{
      [&](const nn::Parameter& parameter) { return masks ? masks->weight(parameter) : std::nullopt; },
      [&](const nn::Parameter& parameter) { return text ? text->weight(parameter) : std::nullopt; }};
  const auto made = weights_of_parts(model, parts, text ? text->dtype() : at::kFloat, seed);
  const int64_t of_masks = made.taken[0], of_text = made.taken[1];
  if (text) spdlog::info("text model: {} tensors of {}", of_text, text->folder().string());
  if (masks) {
    spdlog::info("mask model: {} tensors of {}, in the layout of {}", of_masks, masks->place().string(),
                 masks->layout());
  }
  spdlog::info("at random: {} tensors ({}), from seed {}; writing {}", made.at_random,
               fmt::join(made.modules_at_random, ", "), seed, format_bytes(made.bytes()));
  io::write_checkpoint_tensors(folder, made.weights, io::kDefaultShardBytes);
  return {.from_text_model = of_text,
          .from_mask_model = of_masks,
          .at_random = made.at_random,
          .vocabulary = model.output_weight().size(0)};
}

}  // namespace

Assembly assemble(const AssemblyParts& parts, const fs::path& out) {
  if (!parts.volume_tower.empty()) {
    throw usage_error("--volume-tower: {} has no tower of volumes; leave it out, or name a brain-llava preset",
                      parts.preset);
  }
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
  Assembly made = write_weights(*model, text, source, parts.seed, folder.path());
  made.mask_token_id = *token_id;
  folder.commit();
  return made;
}

}  // namespace vlmtrain::models::prs_med
