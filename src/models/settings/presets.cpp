#include "models/presets.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

std::vector<std::string> list_presets() {
  std::vector<std::string> names;
  for (const auto& [path, content] : resources()) {
    std::string name = path.substr(0, path.find('/'));
    if (names.empty() || names.back() != name) names.push_back(std::move(name));
  }
  return names;
}

std::string get_tokenizer_source(const std::string& preset) {
  static const std::map<std::string, std::string> sources{
      {"llava-1.5-13b", "llava-hf/llava-1.5-13b-hf"},
      {"llava-1.5-7b", "llava-hf/llava-1.5-7b-hf"},
      {"brain-llava-7b", "microsoft/llava-med-v1.5-mistral-7b"},
      {"gemma-3-12b", "google/gemma-3-12b-it"},
      {"gemma-3-27b", "google/gemma-3-27b-it"},
      {"gemma-3-4b", "google/gemma-3-4b-it"},
      {"gemma-4-12b", "google/gemma-4-12B-it"},
      {"gemma-4-31b", "google/gemma-4-31B-it"},
      {"gemma-4-e2b", "google/gemma-4-E2B-it"},
      {"gemma-4-e4b", "google/gemma-4-E4B-it"},
      {"medgemma-4b", "google/medgemma-4b-it"},
      {"internvl3-1b", "OpenGVLab/InternVL3-1B-hf"},
      {"internvl3-2b", "OpenGVLab/InternVL3-2B-hf"},
      {"internvl3-8b", "OpenGVLab/InternVL3-8B-hf"},
      {"internvl3-14b", "OpenGVLab/InternVL3-14B-hf"},
      {"internvl3-38b", "OpenGVLab/InternVL3-38B-hf"},
      {"internvl3.5-1b", "OpenGVLab/InternVL3_5-1B-HF"},
      {"internvl3.5-2b", "OpenGVLab/InternVL3_5-2B-HF"},
      {"internvl3.5-4b", "OpenGVLab/InternVL3_5-4B-HF"},
      {"internvl3.5-8b", "OpenGVLab/InternVL3_5-8B-HF"},
      {"internvl3.5-14b", "OpenGVLab/InternVL3_5-14B-HF"},
      {"internvl3.5-38b", "OpenGVLab/InternVL3_5-38B-HF"},
      {"llava-med-7b", "microsoft/llava-med-v1.5-mistral-7b"},
      {"prs-med-7b", "microsoft/llava-med-v1.5-mistral-7b"},
      {"nanovlm-222m", "HuggingFaceTB/cosmo2-tokenizer"},
      {"nanovlm-460m", "HuggingFaceTB/SmolLM2-360M-Instruct"},
      {"qwen3-0.6b", "Qwen/Qwen3-0.6B"},
      {"qwen2-vl-2b", "Qwen/Qwen2-VL-2B-Instruct"},
      {"qwen2.5-vl-3b", "Qwen/Qwen2.5-VL-3B-Instruct"},
      {"qwen2.5-vl-7b", "Qwen/Qwen2.5-VL-7B-Instruct"},
      {"qwen3.5-0.8b", "Qwen/Qwen3.5-0.8B"},
      {"qwen3.5-2b", "Qwen/Qwen3.5-2B"},
      {"qwen3.5-4b", "Qwen/Qwen3.5-4B"},
      {"qwen3.5-9b", "Qwen/Qwen3.5-9B"},
      {"qwen3.5-27b", "Qwen/Qwen3.5-27B"},
      {"qwen3-vl-2b", "Qwen/Qwen3-VL-2B-Instruct"},
      {"qwen3-vl-4b", "Qwen/Qwen3-VL-4B-Instruct"},
      {"qwen3-vl-8b", "Qwen/Qwen3-VL-8B-Instruct"},
      {"qwen3-vl-32b", "Qwen/Qwen3-VL-32B-Instruct"},
      {"smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"},
      {"smolvlm2-2.2b", "HuggingFaceTB/SmolVLM2-2.2B-Instruct"},
      {"smolvlm2-256m-video", "HuggingFaceTB/SmolVLM2-256M-Video-Instruct"},
      {"smolvlm2-500m-video", "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"},
      {"smolvlm-2.2b", "HuggingFaceTB/SmolVLM-Instruct"},
      {"smolvlm-256m", "HuggingFaceTB/SmolVLM-256M-Instruct"},
      {"smolvlm-500m", "HuggingFaceTB/SmolVLM-500M-Instruct"}};
  const auto it = sources.find(preset);
  return it == sources.end() ? "" : it->second;
}

}  // namespace vlmtrain::models
