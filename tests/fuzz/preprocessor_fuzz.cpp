#include "fuzz/checkpoint_folder.h"
#include "fuzz/input.h"
#include "models/checkpoints/config_checks.h"
#include "models/family.h"
#include "models/presets.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"

namespace {

constexpr const char* kPresets[] = {"smolvlm-tiny", "llava-tiny", "qwen2.5-vl-tiny"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool is_written = [] {
    for (size_t i = 0; i < std::size(kPresets); ++i) {
      const auto folder = vlmtrain::fuzz::get_scratch_folder() / kPresets[i];
      std::filesystem::create_directory(folder);
      vlmtrain::models::write_preset_config(kPresets[i], folder);
    }
    return true;
  }();
  if (!is_written || size == 0) return 0;
  // The first byte selects the family that reads the rest.
  const std::string preset = kPresets[data[0] % std::size(kPresets)];
  vlmtrain::fuzz::write_file(preset + "/preprocessor_config.json", vlmtrain::fuzz::to_text(data + 1, size - 1));
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    const auto folder = vlmtrain::fuzz::get_scratch_folder() / preset;
    const auto config = vlmtrain::io::read_json(folder / "config.json");
    vlmtrain::models::rethrow_json_errors(folder, [&] {
      for (const vlmtrain::image::ImageSize image_size :
           {vlmtrain::image::ImageSize{480, 640}, {1, 3000}, {9000, 9000}}) {
        vlmtrain::models::find_family(config, folder)
            .compute_image_sample_shape(config, folder, image_size, std::nullopt);
      }
    });
  });
  return 0;
}
