#include <ATen/core/Tensor.h>

#include "fuzz/input.h"
#include "vlmtrain/image/video.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    const vlmtrain::fuzz::InputFile file(data, size);
    vlmtrain::image::VideoFile video(file.path());
    const auto info = video.info();
    constexpr int64_t kMaxPixels = 1 << 20;
    if (info.num_frames < 1 || info.size.height < 1) std::abort();
    if (info.size.height * info.size.width > kMaxPixels) return;
    const int64_t frame_indices[] = {0, info.num_frames / 2, info.num_frames - 1};
    video.read_frames(frame_indices, [](const at::Tensor&) {});
  });
  return 0;
}
