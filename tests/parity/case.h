#pragma once

#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "parity/stored_tensor.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::parity {

/// Returns the names of the cases of tests/parity/data.
inline std::vector<std::string> case_names() {
  return {"grouped_tied_one_image",
          "full_heads_untied_tiles",
          "smolvlm_type_sharded",
          "smolvlm_video",
          "text_only",
          "mixed_batch",
          "llava_clip_llama",
          "llava_siglip_qwen2",
          "llava_clip_mistral",
          "llava_original",
          "nanovlm_images_first",
          "nanovlm_tiles",
          "nanovlm_untied",
          "qwen2_5_vl_windows",
          "qwen2_vl_images",
          "qwen2_5_vl_video",
          "qwen2_5_vl_mixed",
          "internvl3_tiles",
          "internvl3_5_mixed",
          "internvl_rms_norm_video",
          "qwen3_5_images",
          "qwen3_5_video",
          "qwen3_vl_images",
          "qwen3_vl_video",
          "qwen3_vl_mixed",
          "gemma3_published",
          "gemma3_saved",
          "gemma3_crops",
          "gemma3_words",
          "gemma4_tower",
          "gemma4_per_layer",
          "gemma4_unified_video",
          "qwen3_text",
          "llama_text",
          "gemma3_text",
          "smollm3_text"};
}

/// Returns the source folder. VLMTRAIN_SOURCE_DIR in the environment overrides it, for a program
/// built elsewhere.
inline std::filesystem::path source_folder() {
  const char* const folder = std::getenv("VLMTRAIN_SOURCE_DIR");
  return folder != nullptr && *folder != '\0' ? folder : VLMTRAIN_SOURCE_DIR;
}

/// Parity case: a small checkpoint, conversations, and transformers' results for them
/// (data/README.md).
class Case {
 public:
  explicit Case(const std::string& name) : folder_(source_folder() / "tests/parity/data" / name) {}

  std::filesystem::path images() const { return folder_ / "images"; }
  std::filesystem::path checkpoint() const { return folder_ / "checkpoint"; }
  nlohmann::json description() const { return io::read_json(folder_ / "case.json"); }
  ReferenceFile expected() const { return ReferenceFile(folder_ / "expected.safetensors"); }
  std::vector<io::Record> records() const { return io::read_dataset(folder_ / "conversations.json", images()); }

  std::unique_ptr<models::VisionLanguageModel> load_model(at::ScalarType dtype = at::kFloat) const {
    auto model = models::build_model(checkpoint(), at::kCPU, dtype);
    models::load_weights(*model, checkpoint());
    return model;
  }

  models::ProcessorSettings processor_settings() const {
    models::ProcessorSettings settings;
    if (description().value("video_layout", "released") == "transformers5") {
      settings.video_layout = data::VideoTokenLayout::kTransformers5;
    }
    return settings;
  }

  std::unique_ptr<models::Processor> load_processor() const {
    return models::load_processor(checkpoint(), processor_settings());
  }

  std::vector<data::Sample> samples() const {
    const auto processor = load_processor();
    const auto case_records = records();
    std::vector<data::Sample> result;
    for (int64_t i = 0; i < std::ssize(case_records); ++i)
      result.push_back(data::make_sample(*processor, case_records[static_cast<size_t>(i)], i));
    return result;
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace vlmtrain::parity
