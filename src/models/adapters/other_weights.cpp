#include "models/adapters/other_weights.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/adapters/adapter_layout.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;

struct KnownWeightFile {
  std::string_view name;  ///< or the beginning of one
  std::string_view meaning;
};

constexpr std::string_view kTrainedWithLora = "weights that were trained beside LoRA";

/// What programs write next to an adapter and load with it.
constexpr std::array kKnownWeightFiles{
    KnownWeightFile{"non_lora_state_dict", kTrainedWithLora},   // Qwen2-VL-Finetune
    KnownWeightFile{"non_lora_trainables", kTrainedWithLora},   // LLaVA
    KnownWeightFile{"mm_projector", "a trained projector"},     // LLaVA
    KnownWeightFile{"vit.", "a trained vision tower"},          // ms-swift
    KnownWeightFile{"vision_tower", "a trained vision tower"},  // LLaVA's forks
    KnownWeightFile{"aligner.", "a trained projector"},         // ms-swift
    KnownWeightFile{"value_head", "a value head"},              // LLaMA-Factory, TRL
    KnownWeightFile{"v_head", "a value head"},
    KnownWeightFile{"new_embeddings", "trained embeddings"},
    KnownWeightFile{"embeddings.", "trained embeddings"},
    KnownWeightFile{"model.safetensors", "weights of a whole model"},
    KnownWeightFile{"model-", "weights of a whole model"},
    KnownWeightFile{"pytorch_model", "weights of a whole model"},
    KnownWeightFile{"consolidated", "weights of a whole model"},
};

/// What trainers write that is no part of a model.
constexpr std::array<std::string_view, 9> kFilesWithoutWeights{"adapter_model.", "training_args.", "optimizer",
                                                               "scheduler",      "rng_state",      "random_states",
                                                               "scaler",         "lr_scheduler",   "trainer_state"};

bool may_hold_tensors(const fs::path& file) {
  constexpr std::array<std::string_view, 6> kExtensions{".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz"};
  return std::ranges::find(kExtensions, file.extension().string()) != kExtensions.end();
}

}  // namespace

void refuse_foreign_weights(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const auto matches_prefix = [&name](std::string_view prefix) { return name.starts_with(prefix); };
    // "._NAME" is macOS' note on NAME.
    if (name.starts_with("._") || !may_hold_tensors(entry->path())) continue;
    if (std::error_code ignored; !entry->is_regular_file(ignored)) continue;
    if (std::ranges::none_of(kFilesWithoutWeights, matches_prefix)) files.push_back(entry->path());
  }
  if (files.empty()) return;
  std::ranges::sort(files);
  const std::string name = files.front().filename().string();
  const auto match = std::ranges::find_if(
      kKnownWeightFiles, [&](const KnownWeightFile& known_file) { return name.starts_with(known_file.name); });
  if (match != kKnownWeightFiles.end()) {
    throw data_error(
        "{}: holds {}, which are not read with the adapter, so that the model would be another one; merge the adapter "
        "with the program that wrote it and take the result, or move the file out of the adapter's folder to do "
        "without them",
        files.front().string(), match->meaning);
  }
  throw data_error(
      "{}: is a file of tensors that is no part of a LoRA adapter ({} is); merge the adapter with the program that "
      "wrote it and take the result, or move the file out of the adapter's folder where it does not belong to it",
      files.front().string(), kAdapterWeightsName);
}

}  // namespace vlmtrain::models
