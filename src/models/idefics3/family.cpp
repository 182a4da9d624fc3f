#include "models/idefics3/family.h"

#include "models/idefics3/config.h"
#include "models/idefics3/image_processor.h"
#include "models/idefics3/model.h"
#include "models/idefics3/processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::idefics3 {

namespace {

ImageProcessorSettings image_settings(const std::filesystem::path& folder) {
  const auto own_file = folder / "preprocessor_config.json";
  if (std::filesystem::exists(own_file))
    return read_image_processor_settings(io::read_json(own_file), own_file.string());
  // transformers 5 writes it into the processor's file.
  const auto path = folder / "processor_config.json";
  const auto config = io::read_json(path);
  if (!config.contains("image_processor")) {
    throw data_error("{}: neither preprocessor_config.json nor a section image_processor in {}", folder.string(),
                     path.filename().string());
  }
  return read_image_processor_settings(config["image_processor"], path.string());
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config, const std::filesystem::path& folder,
                                           at::TensorOptions options) {
  return std::make_unique<Model>(Config::from_json(config, (folder / "config.json").string()),
                                 image_settings(folder).normalization, options);
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config, const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  return std::make_unique<Processor>(Config::from_json(config, (folder / "config.json").string()),
                                     ImageProcessor(image_settings(folder), settings.image_max_pixels),
                                     text::Tokenizer::from_file(folder / "tokenizer.json"), settings);
}

}  // namespace

Family family() {
  return {{"idefics3", "smolvlm"}, build, load_processor};
}

}  // namespace vlmtrain::models::idefics3
