#include "fuzz/checkpoint_folder.h"
#include "fuzz/input.h"
#include "models/checkpoints/from_settings.h"
#include "models/registry.h"
#include "vlmtrain/io/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vlmtrain::fuzz::expect_taken_or_refused([&] {
    const auto& folder = vlmtrain::fuzz::scratch_folder();
    vlmtrain::fuzz::put("config.json", vlmtrain::fuzz::text_of(data, size));
    vlmtrain::fuzz::put("preprocessor_config.json", "{}");
    const auto config = vlmtrain::io::read_json(folder / "config.json");
    vlmtrain::models::from_settings(folder, [&] {
      const auto& family = vlmtrain::models::family_of(config, folder);
      if (!(family.elements(config, folder) >= 0)) std::abort();
      if (family.image_shape != nullptr) {
        family.image_shape(config, folder, {.height = 480, .width = 640}, std::nullopt);
      }
      if (family.volume_shape != nullptr) family.volume_shape(config, folder, std::nullopt, at::kFloat);
    });
  });
  return 0;
}
