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

struct OtherWeights {
  std::string_view name;  ///< or the beginning of one
  std::string_view meaning;
};

constexpr std::string_view kTrainedBeside = "weights that were trained beside LoRA";

/// What programs write next to an adapter and load with it.
constexpr std::array kKnownWeights{
    OtherWeights{"non_lora_state_dict", kTrainedBeside},     // Qwen2-VL-Finetune
    OtherWeights{"non_lora_trainables", kTrainedBeside},     // LLaVA
    OtherWeights{"mm_projector", "a trained projector"},     // LLaVA
    OtherWeights{"vit.", "a trained vision tower"},          // ms-swift
    OtherWeights{"vision_tower", "a trained vision tower"},  // LLaVA's forks
    OtherWeights{"aligner.", "a trained projector"},         // ms-swift
    OtherWeights{"value_head", "a value head"},              // LLaMA-Factory, TRL
    OtherWeights{"v_head", "a value head"},
    OtherWeights{"new_embeddings", "trained embeddings"},
    OtherWeights{"embeddings.", "trained embeddings"},
    OtherWeights{"model.safetensors", "weights of a whole model"},
    OtherWeights{"model-", "weights of a whole model"},
    OtherWeights{"pytorch_model", "weights of a whole model"},
    OtherWeights{"consolidated", "weights of a whole model"},
};

/// What trainers write that is no part of a model.
constexpr std::array<std::string_view, 9> kFilesWithoutWeights{"adapter_model.", "training_args.", "optimizer",
                                                               "scheduler",      "rng_state",      "random_states",
                                                               "scaler",         "lr_scheduler",   "trainer_state"};

bool may_hold_tensors(const fs::path& file) {
  constexpr std::array<std::string_view, 6> kEndings{".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz"};
  return std::ranges::find(kEndings, file.extension().string()) != kEndings.end();
}

}  // namespace

void refuse_other_weights(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const auto begins_name = [&name](std::string_view beginning) { return name.starts_with(beginning); };
    // "._NAME" is macOS' note on NAME.
    if (name.starts_with("._") || !may_hold_tensors(entry->path())) continue;
    if (std::error_code ignored; !entry->is_regular_file(ignored)) continue;
    if (std::ranges::none_of(kFilesWithoutWeights, begins_name)) files.push_back(entry->path());
  }
  if (files.empty()) return;
  std::ranges::sort(files);
  const std::string name = files.front().filename().string();
  const auto known =
      std::ranges::find_if(kKnownWeights, [&](const OtherWeights& other) { return name.starts_with(other.name); });
  if (known != kKnownWeights.end()) {
    throw data_error(
        "{}: holds {}, which are not read with the adapter, so that the model would be another one; merge the adapter "
        "with the program that wrote it and take the result, or move the file out of the adapter's folder to do "
        "without them",
        files.front().string(), known->meaning);
  }
  throw data_error(
      "{}: is a file of tensors that is no part of a LoRA adapter ({} is); merge the adapter with the program that "
      "wrote it and take the result, or move the file out of the adapter's folder where it does not belong to it",
      files.front().string(), kAdapterWeightsName);
}

}  // namespace vlmtrain::models
