#include <c10/core/ScalarType.h>

#include "fuzz/checkpoint_folder.h"
#include "fuzz/input.h"
#include "models/checkpoints/config_checks.h"
#include "models/family.h"
#include "vlmtrain/io/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    const auto& folder = vlmtrain::fuzz::get_scratch_folder();
    vlmtrain::fuzz::write_file("config.json", vlmtrain::fuzz::to_text(data, size));
    vlmtrain::fuzz::write_file("preprocessor_config.json", "{}");
    const auto config = vlmtrain::io::read_json(folder / "config.json");
    vlmtrain::models::rethrow_json_errors(folder, [&] {
      const auto& family = vlmtrain::models::find_family(config, folder);
      if (!(family.num_parameters(config, folder) >= 0)) std::abort();
      if (family.compute_image_sample_shape != nullptr) {
        family.compute_image_sample_shape(config, folder, {.height = 480, .width = 640}, std::nullopt);
      }
      if (family.compute_volume_sample_shape != nullptr)
        family.compute_volume_sample_shape(config, folder, std::nullopt, at::kFloat);
    });
  });
  return 0;
}
